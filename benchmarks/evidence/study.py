"""The training runs of the study, in order, with the options of each.

1. Searches: every model is trained with the same number of settings, once with each, for SEARCH_EPOCHS epochs and
   without the test split. A variant of a model is not searched; it uses the setting of its model.
2. Evaluated runs: the setting that is best on dev is trained with other seeds for EPOCHS epochs. These runs are
   evaluated on the test split.
3. Additional runs of one model: CHECKS measure the effect of the arithmetic, HYPOTHESES look for the reason of the
   result.

All runs but one of CHECKS use bfloat16 autocast, which takes between a half and two thirds of float32's time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from qacg_models.data import DataOptions
from qacg_models.runs.options import TrainingOptions

EPOCHS, SEARCH_EPOCHS = 4, 2
SEARCH_SEED = 0
BEGUN_FROM = "minilm"


@dataclass(frozen=True)
class DataSet:
    """A published data set.

    Attributes:
        name: name of its folder.
        title: its name in tables.
        format: its data format.
        seeds: seeds of the training runs that are evaluated on test.
    """

    name: str
    title: str
    format: str
    seeds: tuple[int, ...]

    @property
    def options(self) -> DataOptions:
        return DataOptions(format=self.format)


DATA = {
    one.name: one
    for one in (
        DataSet("sentihood", "SentiHood", "sentihood-tsv", (1, 2, 3, 4, 5)),
        DataSet("semeval2014", "SemEval-2014 restaurants", "semeval-csv", (1, 2, 3)),
    )
}
# The settings are chosen on this data set, for all data sets.
TRIED_ON = "sentihood"


@dataclass(frozen=True)
class Contestant:
    """A model of the comparison.

    Attributes:
        title: its name in tables.
        choices: its training options.
        contexts: whether its input has the aspect as an id. If so, CONTEXT_SETTINGS are tried too, else PLAIN_SETTINGS.
        settings_of: for a variant of another contestant, the name of that contestant, whose chosen setting it uses;
            None if settings are tried for this contestant itself.
    """

    title: str
    choices: Mapping[str, object]
    contexts: bool = True
    settings_of: str | None = None


BERT = "bert"
CONTESTANTS = {
    BERT: Contestant("BERT, sentence pair", {"model": "bert"}, contexts=False),
    "cg-bert": Contestant("CG-BERT", {"model": "cg-bert"}),
    "qacg-bert": Contestant("QACG-BERT", {"model": "qacg-bert"}),
    "lambda-0": Contestant("QACG-BERT, lambda 0", {"model": "qacg-bert", "quasi_scale": 0.0}, settings_of="qacg-bert"),
}

# Settings of all models: two usual learning rates, the pooler of the paper, and the settings of the released code
# (except for its 30 epochs and its optimizer without bias correction).
SETTINGS: dict[str, dict[str, object]] = {
    "rate-2e-4": {"learning_rate": 2e-4, "pooler": "cls"},
    "rate-1e-4": {"learning_rate": 1e-4, "pooler": "cls"},
    "average": {"learning_rate": 2e-4, "pooler": "attention"},
    "released": {"learning_rate": 2e-5, "pooler": "cls", "batch_size": 64, "balance": 1.0},
}
# Further settings of models with contexts: the aspect by its id only, and the projections of the paper.
CONTEXT_SETTINGS: dict[str, dict[str, object]] = {
    "id-alone": {"learning_rate": 2e-4, "pooler": "cls", "context_standalone": True},
    "documents": {"learning_rate": 2e-4, "pooler": "attention", "context_projection": "head"},
}
# Further settings of models without contexts: as many as CONTEXT_SETTINGS, so that all models have the same number.
PLAIN_SETTINGS: dict[str, dict[str, object]] = {
    "rate-4e-4": {"learning_rate": 4e-4, "pooler": "cls"},
    "rate-5e-5": {"learning_rate": 5e-5, "pooler": "cls"},
}

# Changes of the arithmetic, each trained with one seed of QACG-BERT; the first is a plain repetition.
CHECKS: dict[str, dict[str, object]] = {"again": {}, "eager": {"attention": "eager"}, "float32": {"bf16": False}}
CHECKED = "qacg-bert"


@dataclass(frozen=True)
class Hypothesis:
    """A variant of QACG-BERT (CHECKED), which tests a possible reason why the quasi-attention map does not help.

    Attributes:
        title: its name in tables.
        choices: its training options.
    """

    title: str
    choices: Mapping[str, object]


# As published, lambda starts at 0. The projections of the quasi-attention map then get no gradient, and the map is
# uniform over the keys, so that lambda can only scale it. Three variants change the start: the quasi-attention map is
# multiplied by 8, or lambda starts at 1/2 or 1/16. On SentiHood's sentences, a uniform quasi-attention map has eight
# times the weight of the softmax map if lambda is 1/2, and the same weight if lambda is 1/16.
HYPOTHESES = {
    "scale-8": Hypothesis("quasi-attention map times 8", {"quasi_scale": 8.0}),
    "lambda-half": Hypothesis("lambda from 1/2", {"beta": 0.5, "gamma": 0.5}),
    "lambda-sixteenth": Hypothesis("lambda from 1/16", {"beta": 15 / 16, "gamma": 15 / 16}),
}
HYPOTHESIS_SEEDS = (1, 2, 3)


def settings_of(contestant: str) -> dict[str, dict[str, object]]:
    """Returns the settings that are tried for a contestant: training options by name of the setting."""
    return SETTINGS | (CONTEXT_SETTINGS if CONTESTANTS[contestant].contexts else PLAIN_SETTINGS)


@dataclass(frozen=True)
class Trial:
    """One training run.

    Attributes:
        data: name of the data set.
        contestant: name of the contestant.
        setting: name of the setting.
        seed: seed of new weights, order of examples and dropout.
        check: for an additional run, the name of its options in CHECKS or HYPOTHESES; None for other runs.
    """

    data: str
    contestant: str
    setting: str
    seed: int
    check: str | None = None

    @property
    def name(self) -> str:
        """The name of the run's files, without suffix."""
        return "_".join((self.data, self.contestant, self.setting, str(self.seed), *([self.check] * bool(self.check))))

    @property
    def is_search(self) -> bool:
        """Whether the run serves to choose a setting, and so does not see the test split."""
        return self.seed == SEARCH_SEED

    @property
    def epochs(self) -> int:
        return SEARCH_EPOCHS if self.is_search else EPOCHS

    @property
    def options(self) -> TrainingOptions:
        """The run's training options."""
        known = settings_of(CONTESTANTS[self.contestant].settings_of or self.contestant)
        choices = {"from_checkpoint": BEGUN_FROM, "epochs": self.epochs, "bf16": True, "threads": 1, "seed": self.seed}
        choices |= CONTESTANTS[self.contestant].choices | known[self.setting]
        if self.check in HYPOTHESES:
            choices |= HYPOTHESES[self.check].choices
        return TrainingOptions(**choices | CHECKS.get(self.check, {}))


def searches() -> list[Trial]:
    """The training runs that choose settings, for all contestants that do not use the setting of another one."""
    return [
        Trial(TRIED_ON, contestant, setting, SEARCH_SEED)
        for contestant, one in CONTESTANTS.items()
        if one.settings_of is None
        for setting in settings_of(contestant)
    ]


def chosen_settings(dev: Mapping[str, float]) -> dict[str, str]:
    """The best setting of each contestant; a contestant with untried settings is left out.

    A contestant with `settings_of` gets the setting of that other contestant.

    Args:
        dev: the metric on dev of each search, by name of the run. Runs select their weights by this metric.

    Returns:
        Names of settings by contestant.
    """
    tried: dict[str, list[Trial]] = {}
    for trial in searches():
        tried.setdefault(trial.contestant, []).append(trial)
    best = {
        contestant: max(trials, key=lambda one: dev[one.name]).setting
        for contestant, trials in tried.items()
        if all(one.name in dev for one in trials)
    }
    shared = {name: best[one.settings_of] for name, one in CONTESTANTS.items() if one.settings_of in best}
    return best | shared


def evaluated(settings: Mapping[str, str]) -> list[Trial]:
    """The training runs that are evaluated on test, seed by seed, for the contestants in `settings`.

    The runs of CHECKS and HYPOTHESES follow, if CHECKED is in `settings`.

    Args:
        settings: the chosen setting of each contestant.
    """
    trials = []
    for data in DATA.values():
        for seed in data.seeds:
            trials += [Trial(data.name, one, settings[one], seed) for one in CONTESTANTS if one in settings]
    if CHECKED in settings:
        first = DATA[TRIED_ON].seeds[0]
        trials += [Trial(TRIED_ON, CHECKED, settings[CHECKED], first, check) for check in CHECKS]
        trials += [
            Trial(TRIED_ON, CHECKED, settings[CHECKED], seed, name) for seed in HYPOTHESIS_SEEDS for name in HYPOTHESES
        ]
    return trials


def every_trial() -> list[Trial]:
    """Returns all training runs, to count them before the settings are chosen.

    Runs that are evaluated on test have the first setting, as if it had been chosen for all models.
    """
    return [*searches(), *evaluated({name: next(iter(SETTINGS)) for name in CONTESTANTS})]

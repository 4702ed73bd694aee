"""Which trainings make the evidence, in their order, and what each of them is told.

Every model is tried with as many settings, each by one training of SEARCH_EPOCHS passes whose test split stays closed,
and takes the one that is best on dev. Trainings of EPOCHS passes with seeds of their own follow, and of these the test
split is judged. All have bfloat16 autocast, which takes a half to two thirds of float32's time; CHECKS say what that
changes, and HYPOTHESES look for the reason of what comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qacg_models.data import DataOptions
from qacg_models.runs.options import TrainingOptions

EPOCHS, SEARCH_EPOCHS = 4, 2
SEARCH_SEED = 0
BEGUN_FROM = "minilm"


@dataclass(frozen=True)
class DataSet:
    """A published set.

    Attributes:
        name: of its folder.
        title: what tables call it.
        format: how it is read.
        seeds: of the trainings that are judged on test.
    """

    name: str
    title: str
    format: str
    seeds: tuple[int, ...]

    @property
    def epochs(self) -> int:
        """Passes over the training data."""
        return SEARCH_EPOCHS if self.is_search else EPOCHS

    @property
    def options(self) -> DataOptions:
        """How it is read."""
        return DataOptions(format=self.format)


DATA = {
    one.name: one
    for one in (
        DataSet("sentihood", "SentiHood", "sentihood-tsv", (1, 2, 3, 4, 5)),
        DataSet("semeval2014", "SemEval-2014 restaurants", "semeval-csv", (1, 2, 3)),
    )
}
# The settings are tried on this set; the others take what it chose.
TRIED_ON = "sentihood"


@dataclass(frozen=True)
class Contestant:
    """A model of the comparison.

    Attributes:
        title: what tables call it.
        choices: what makes it of the options of a training.
        contexts: whether it is told the aspect by an id, so that the settings about this apply.
        settings_of: the contestant whose chosen setting it takes, for one that differs from it in a single point.
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

# Of all models: the two usual rates, the pooler of the documents, and what the released code does (but for its 30
# epochs and for its optimizer without bias correction).
SETTINGS: dict[str, dict[str, object]] = {
    "rate-2e-4": {"learning_rate": 2e-4, "pooler": "cls"},
    "rate-1e-4": {"learning_rate": 1e-4, "pooler": "cls"},
    "average": {"learning_rate": 2e-4, "pooler": "attention"},
    "released": {"learning_rate": 2e-5, "pooler": "cls", "batch_size": 64, "balance": 1.0},
}
# Of models with contexts: the aspect by its id alone, and projections as the documents have them.
CONTEXT_SETTINGS: dict[str, dict[str, object]] = {
    "id-alone": {"learning_rate": 2e-4, "pooler": "cls", "context_standalone": True},
    "documents": {"learning_rate": 2e-4, "pooler": "attention", "context_projection": "head"},
}
# Of a model without them as many others, so that none has more tries.
PLAIN_SETTINGS: dict[str, dict[str, object]] = {
    "rate-4e-4": {"learning_rate": 4e-4, "pooler": "cls"},
    "rate-5e-5": {"learning_rate": 5e-5, "pooler": "cls"},
}

# One seed of QACG-BERT with each: what the arithmetic changes, beside what nothing but another day or machine does.
CHECKS: dict[str, dict[str, object]] = {"again": {}, "eager": {"attention": "eager"}, "float32": {"bf16": False}}
CHECKED = "qacg-bert"


@dataclass(frozen=True)
class Hypothesis:
    """A variant of CHECKED that would help if it were right about why the second map does not.

    Attributes:
        title: what tables call it.
        choices: what makes it of the options of a training.
    """

    title: str
    choices: Mapping[str, object]


# Lambda begins at 0, with weights of 0.01, and there the map's own projections have no gradient; the map they give is
# even over the keys, of which lambda can only let in more or less. So one of the two has to be pushed off: the gates
# by a map of eight times the weight, or the projections by a lambda that is 1/2 from the first step. Of an even map
# that is eight times the softmax map on SentiHood's sentences; 1/16 lets in as much as the softmax map has.
HYPOTHESES = {
    "scale-8": Hypothesis("second map times 8", {"quasi_scale": 8.0}),
    "lambda-half": Hypothesis("lambda from 1/2", {"beta": 0.5, "gamma": 0.5}),
    "lambda-sixteenth": Hypothesis("lambda from 1/16", {"beta": 15 / 16, "gamma": 15 / 16}),
}
HYPOTHESIS_SEEDS = (1, 2, 3)


def settings_of(contestant: str) -> dict[str, dict[str, object]]:
    """The settings that are tried with a contestant."""
    return SETTINGS | (CONTEXT_SETTINGS if CONTESTANTS[contestant].contexts else PLAIN_SETTINGS)


@dataclass(frozen=True)
class Trial:
    """One training.

    Attributes:
        data: name of the set.
        contestant: name of the model.
        setting: name of the setting.
        seed: of weights, order and dropout.
        check: one of CHECKS or of HYPOTHESES, or None.
    """

    data: str
    contestant: str
    setting: str
    seed: int
    check: str | None = field(default=None)

    @property
    def name(self) -> str:
        """Of its files."""
        return "_".join((self.data, self.contestant, self.setting, str(self.seed), *([self.check] * bool(self.check))))

    @property
    def is_search(self) -> bool:
        """Whether its test split stays closed."""
        return self.seed == SEARCH_SEED

    @property
    def epochs(self) -> int:
        """Passes over the training data."""
        return SEARCH_EPOCHS if self.is_search else EPOCHS

    @property
    def options(self) -> TrainingOptions:
        """What the training is told."""
        known = settings_of(CONTESTANTS[self.contestant].settings_of or self.contestant)
        choices = {"from_checkpoint": BEGUN_FROM, "epochs": self.epochs, "bf16": True, "threads": 1, "seed": self.seed}
        choices |= CONTESTANTS[self.contestant].choices | known[self.setting]
        if self.check in HYPOTHESES:
            choices |= HYPOTHESES[self.check].choices
        return TrainingOptions(**choices | CHECKS.get(self.check, {}))


def searches(data: str = TRIED_ON) -> list[Trial]:
    """The trainings that choose settings."""
    return [
        Trial(data, contestant, setting, SEARCH_SEED)
        for contestant, told in CONTESTANTS.items()
        if told.settings_of is None
        for setting in settings_of(contestant)
    ]


def chosen_settings(dev: Mapping[str, float]) -> dict[str, str]:
    """The best setting of every contestant whose settings have all been tried.

    Args:
        dev: name of a trial to the value on dev by which its weights were chosen.
    """
    tried: dict[str, list[Trial]] = {}
    for trial in searches():
        tried.setdefault(trial.contestant, []).append(trial)
    best = {
        contestant: max(trials, key=lambda one: dev[one.name]).setting
        for contestant, trials in tried.items()
        if all(one.name in dev for one in trials)
    }
    borrowed = {name: best[told.settings_of] for name, told in CONTESTANTS.items() if told.settings_of in best}
    return best | borrowed


def judged(settings: Mapping[str, str]) -> list[Trial]:
    """The trainings of contestants with a setting that are judged on test: a seed of all before the next."""
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
    """All trainings; those that are judged have the first setting, whatever will be chosen."""
    return [*searches(), *judged({name: next(iter(SETTINGS)) for name in CONTESTANTS})]

"""The arms of the study (the models that are compared) and the training runs, in order.

All arms start from MiniLM. The layers below `from_layer` are computed once for a text, the others once for each of its
aspects. The arms differ in how the aspect enters the model. Every arm is trained once with every setting on one data
set, without the test split ("search"). The setting that is best on dev is then trained with other seeds on all data
sets, and these runs are evaluated on test.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qacg_models.data import DataOptions

LAYERS = 6  # of MiniLM
EPOCHS = 2
ROWS = 32  # minimum of pairs of text and aspect in a training step: texts are added until this number is reached
SEARCH_SEED = 0
SEEDS = (1, 2, 3)
# The settings are chosen on this data set, for all data sets.
TRIED_ON = "sentihood"
DATA = {"sentihood": DataOptions(format="sentihood-tsv"), "semeval2014": DataOptions(format="semeval-csv")}

# How the aspect enters the model: `Arm.kind`.
PAIRS, TOKEN, SUM, QUASI, HEADS, BLIND = "pairs", "token", "sum", "quasi", "heads", "blind"


@dataclass(frozen=True)
class Arm:
    """A model that classifies a text for an aspect.

    Attributes:
        title: its name in tables.
        kind: how the aspect enters the model. PAIRS appends the tokens of the aspect's name to those of the text. TOKEN
            appends one vector of the aspect, SUM adds that vector to all tokens, and QUASI has it as the context of
            quasi-attention. HEADS has a separate classifier for each aspect. BLIND does not use the aspect.
        from_layer: the first layer that is computed for each aspect; the layers below see the text only.
        names: whether vectors of aspects are initialised from the hidden states of their names at the input of layer
            `from_layer`, instead of at random.
        computed: whether vectors of aspects are computed from their names in every step, not only at the start as with
            `names`. The model then supports aspects that it was not trained on.
        copied: whether context projections are initialised as copies of the projections of the tokens.
        bias: whether -log(n) is added to the scores of the quasi-attention map; n is the number of keys.
        bias_start: whether biases of the context projections are initialised so that they add -log(KEYS) to the scores.
        context_dropout: whether dropout acts on context queries and context keys, as in the released code.
        added: whether QUASI also adds the vector to all tokens at layer `from_layer`, as SUM does.
        softmax_map: whether the quasi-attention map is a softmax instead of a sigmoid.
        quasi_scale: factor of the quasi-attention map.
        beta, gamma: weights of the gates in lambda; lambda starts at 1 - (beta + gamma) / 2.
    """

    title: str
    kind: str
    from_layer: int = 0
    names: bool = False
    computed: bool = False
    copied: bool = False
    bias: bool = False
    bias_start: bool = False
    context_dropout: bool = True
    added: bool = False
    softmax_map: bool = False
    quasi_scale: float = 1.0
    beta: float = 1.0
    gamma: float = 1.0

    @property
    def asked_layers(self) -> int:
        """The number of layers that are computed for each aspect."""
        return LAYERS - self.from_layer


BEST_START: dict[str, Any] = {"names": True, "copied": True, "bias": True, "beta": 0.9, "gamma": 0.9}
# BEST_START without the bias -log(n) in the operator.
NO_BIAS: dict[str, Any] = BEST_START | {"bias": False}
KEYS = 27  # number of keys of an average text of SentiHood
ARMS: Mapping[str, Arm] = {
    # Upper and lower bound: full sentence pairs, and no aspect at all.
    "pairs-0": Arm("sentence pairs", PAIRS),
    "blind": Arm("no aspect", BLIND, LAYERS),
    # Arms whose aspect enters at a late layer, the simplest mechanism first.
    "heads": Arm("a classifier per aspect", HEADS, LAYERS),
    **{f"token-{k}": Arm(f"aspect as a token from layer {k}", TOKEN, k, names=True) for k in (5, 4, 3, 2, 1, 0)},
    **{f"pairs-{k}": Arm(f"pairs from layer {k}", PAIRS, k) for k in (5, 4, 3, 2, 1)},
    **{f"sum-{k}": Arm(f"aspect added to tokens from layer {k}", SUM, k, names=True) for k in (5, 4, 3, 2, 1, 0)},
    **{f"quasi-{k}-best": Arm(f"quasi-attention from layer {k}", QUASI, k, **BEST_START) for k in (5, 4, 3, 2, 1, 0)},
    "quasi-5-added": Arm("quasi-attention from layer 5, aspect added too", QUASI, 5, added=True, **BEST_START),
    # BEST_START with another mechanism instead of the bias -log(n).
    "quasi-4-scaled": Arm("map times 1/16 instead of bias -log(n)", QUASI, 4, quasi_scale=1 / 16, **NO_BIAS),
    "quasi-4-start": Arm("projection biases instead of bias -log(n)", QUASI, 4, bias_start=True, **NO_BIAS),
    "quasi-4-kept": Arm(
        "projection biases, no context dropout", QUASI, 4, bias_start=True, context_dropout=False, **NO_BIAS
    ),
    # BEST_START without one of its parts.
    "quasi-4-released": Arm("quasi-attention from layer 4, released start", QUASI, 4),
    "quasi-4-no-names": Arm("- vectors from names", QUASI, 4, **(BEST_START | {"names": False})),
    "quasi-4-no-copies": Arm("- copied projections", QUASI, 4, **(BEST_START | {"copied": False})),
    "quasi-4-no-bias": Arm("- bias -log(n)", QUASI, 4, **NO_BIAS),
    "quasi-4-no-lambda": Arm("- lambda from 0.1", QUASI, 4, **(BEST_START | {"beta": 1.0, "gamma": 1.0})),
    "quasi-4-computed": Arm("vectors computed from names", QUASI, 4, computed=True, **BEST_START),
    "quasi-4-free": Arm("lambda a free gate", QUASI, 4, **(BEST_START | {"beta": 1.0, "gamma": 0.0})),
    "quasi-4-softmax": Arm("softmax quasi-attention map", QUASI, 4, softmax_map=True, **NO_BIAS),
    # Quasi-attention in all layers: the released initialisation with one change each.
    "quasi-0": Arm("quasi-attention, released start", QUASI),
    "quasi-0-names": Arm("+ vectors from names", QUASI, names=True),
    "quasi-0-copied": Arm("+ copied projections", QUASI, copied=True),
    "quasi-0-bias": Arm("+ bias -log(n)", QUASI, bias=True),
    "quasi-0-lambda": Arm("+ lambda from 0.1", QUASI, beta=0.9, gamma=0.9),
}


@dataclass(frozen=True)
class Setting:
    """Learning rates.

    Attributes:
        rate: the learning rate of MiniLM's layers.
        factor: the learning rate of new parameters, divided by `rate`.
    """

    rate: float
    factor: float


# One setting for all arms: the learning rate that was best for BERT and QACG-BERT in `benchmarks.evidence`, and five
# times that for new parameters, which are initialised at random.
SETTINGS: Mapping[str, Setting] = {"1e-4-x5": Setting(1e-4, 5.0)}
# Another setting, tried for some arms. Where it is better on dev, it is evaluated on TRIED_ON beside the first one.
OTHER_SETTINGS: Mapping[str, Setting] = {"1e-4-x10": Setting(1e-4, 10.0)}
OTHER_SETTINGS_OF = ("quasi-4-best", "quasi-4-released", "quasi-5-best", "sum-5", "pairs-4")


@dataclass(frozen=True)
class Trial:
    """One training run.

    Attributes:
        data: name of the data set.
        arm: name of the arm.
        setting: name of the setting.
        seed: seed of new weights, order and dropout.
    """

    data: str
    arm: str
    setting: str
    seed: int

    @property
    def name(self) -> str:
        """The name of the run's files, without suffix."""
        return f"{self.data}_{self.arm}_{self.setting}_{self.seed}"

    @property
    def is_search(self) -> bool:
        """Whether the run serves to choose a setting, and so does not see the test split."""
        return self.seed == SEARCH_SEED


def searches() -> list[Trial]:
    """The training runs that choose settings, setting by setting."""
    return [Trial(TRIED_ON, arm, setting, SEARCH_SEED) for setting in SETTINGS for arm in ARMS]


def other_searches() -> list[Trial]:
    """The training runs that try OTHER_SETTINGS, for the arms in OTHER_SETTINGS_OF."""
    return [Trial(TRIED_ON, arm, setting, SEARCH_SEED) for setting in OTHER_SETTINGS for arm in OTHER_SETTINGS_OF]


def evaluated(dev: Mapping[str, float]) -> list[Trial]:
    """The training runs that are evaluated on test, seed by seed, of the arms whose settings have all been tried.

    Runs on TRIED_ON with a setting of OTHER_SETTINGS follow, for arms that are better on dev with it.

    Args:
        dev: the selection metric on dev of each search, by name of the run.
    """
    chosen = {}
    for arm in ARMS:
        tried = [trial for trial in searches() if trial.arm == arm]
        if all(one.name in dev for one in tried):
            chosen[arm] = max(tried, key=lambda one: dev[one.name])
    better = [one for one in other_searches() if one.arm in chosen and dev.get(one.name, 0) > dev[chosen[one.arm].name]]
    return [
        *(Trial(data, arm, one.setting, seed) for data in DATA for seed in SEEDS for arm, one in chosen.items()),
        *(Trial(TRIED_ON, one.arm, one.setting, seed) for seed in SEEDS for one in better),
    ]

"""Recipes: the defaults of training options that are not given."""

import math
from types import MappingProxyType

from qacg_models.utils.option_fields import format_value

RECIPES = MappingProxyType(
    {
        # Tuned on the bundled sample, for models of two layers: large initial weights and a high rate. From scratch,
        # the metric on dev is constant for some hundred steps before it improves, so the patience is large.
        "scratch": {
            "schedule": "steady",
            "minutes": 60.0,
            "patience": 20,
            "batch_size": 64,
            "learning_rate": 2e-3,
            "warmup": 0.1,
            "balance": 0.3,
            "logit_adjustment": 0.0,
            "dropout": 0.2,
            "word_dropout": 0.1,
            "join_texts": 0.5,
            "hidden_size": 64,
            "layers": 2,
            "heads": 4,
            "intermediate_size": 256,
            "vocab_size": 4000,
            "initializer_range": 0.08,
            "pooler": "attention",
            "context_projection": "hidden",
            "context_standalone": True,
            "context_from_layer": 0,
            "threads": 1,
        },
        "pretrained": {
            "schedule": "steady",
            "minutes": 60.0,
            "patience": 6,
            "batch_size": 32,
            "warmup": 0.05,
            "word_dropout": 0.0,
            "join_texts": 0.0,
            "balance": 0.3,
            "logit_adjustment": 0.0,
            "pooler": "cls",
            "context_projection": "hidden",
            "context_standalone": False,
            "context_from_layer": 0,
            "threads": 0,
        },
        # With a given number of steps, training does not stop early.
        "counted": {
            "schedule": "linear",
            "minutes": 0.0,
            "patience": 0,
            "eval_every": 0,
            "warmup": 0.1,
            "word_dropout": 0.0,
            "join_texts": 0.0,
        },
        # Values of the code that the authors of QACG-BERT released. Its weight decay, gradient clipping and maximum
        # length are defaults of all recipes.
        "released": {
            "epochs": 30,
            "batch_size": 64,
            "warmup": 0.1,
            "learning_rate": 2e-5,
            "balance": 1.0,
            "eval_every": 25,
            "pooler": "cls",
            "context_standalone": False,
        },
    }
)


# Limits of the number of steps between two evaluations. With fewer steps, differences between evaluations are noise;
# with more steps, the best weights may be missed.
MIN_BETWEEN, MAX_BETWEEN = 50, 500


def evaluation_steps(steps_per_epoch: int) -> int:
    """Returns the number of steps between evaluations: half an epoch, clipped to [MIN_BETWEEN, MAX_BETWEEN]."""
    return min(max(steps_per_epoch // 2, MIN_BETWEEN), MAX_BETWEEN)


# Up to this number of training rows, a checkpoint is fine-tuned for a fixed number of epochs; with more rows, until the
# metric on dev stops improving.
COUNTED_ROWS = 24_000
# With fewer dev rows, the best checkpoint on dev is a matter of chance, so the last one is kept.
MIN_ROWS_TO_SELECT = 500


# Minimum epochs and steps of fine-tuning. Half as many steps lost 11 points of macro-F1 on 300 SemEval sentences.
MIN_EPOCHS, MIN_STEPS = 4, 400


def pretrained_epochs(steps_per_epoch: int) -> int:
    """Returns the smallest number of epochs that is at least MIN_EPOCHS and contains at least MIN_STEPS steps."""
    return max(MIN_EPOCHS, math.ceil(MIN_STEPS / steps_per_epoch))


def pretrained_rate(width: int | None) -> float:
    """Returns the learning rate of fine-tuning, which is larger for small models.

    The rate is 2e-4 up to hidden size 384, and 5e-5 from hidden size 768 on. In between it is proportional to
    1 / size^2.

    Args:
        width: hidden size; None if it is unknown, which counts as 768.
    """
    return 5e-5 * min(max(768 / (width or 768), 1.0), 2.0) ** 2


def describe_default(name: str) -> str | None:
    """Returns the defaults of an option in all recipes, for its help text; None if "scratch" has no default for it."""
    scratch, pretrained, counted, released = (
        RECIPES[recipe].get(name) for recipe in ("scratch", "pretrained", "counted", "released")
    )
    if scratch is None:
        return None
    same = pretrained == scratch or (pretrained is None and released is None)
    parts = [format_value(scratch) if same else f"{format_value(scratch)} from scratch"]
    parts += [f"{format_value(pretrained)} with a checkpoint"] if pretrained not in (scratch, None) else []
    # With a checkpoint, --epochs often has a default (`_count_epochs` in resolve_options.py). It has the same effect on
    # other defaults as a given --epochs, except on --minutes.
    epochs = "--epochs" if name == "minutes" else "--epochs (given or by default)"
    steps = f"{epochs}, --max-steps or protocol=released" if released is None else f"{epochs} or --max-steps"
    for value, condition in ((counted, steps), (released, "protocol=released")):
        if value is not None and {scratch, pretrained} - {None} != {value}:
            parts.append(f"{format_value(value)} with {condition}")
    return ", ".join(parts)

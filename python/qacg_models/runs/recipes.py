"""Choices that go together: what training settles where nothing else was said."""

from __future__ import annotations

import math
from types import MappingProxyType

from qacg_models.utils.option_fields import shown

RECIPES = MappingProxyType(
    {
        # Found on the bundled sample: wide initial weights and a high rate, for models of two layers. From scratch,
        # dev stands still for some hundred steps before it rises, hence the patience.
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
            "threads": 0,
        },
        # Where the number of steps is given, they are all taken.
        "counted": {
            "schedule": "linear",
            "minutes": 0.0,
            "patience": 0,
            "eval_every": 0,
            "warmup": 0.1,
            "word_dropout": 0.0,
            "join_texts": 0.0,
        },
        # The released code's; its decay, clipping and length are the defaults of everything here.
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


# Between two evaluations of a training whose end is open. Fewer steps show little but chance; after more of them, the
# best weights may lie in between.
LEAST_BETWEEN, MOST_BETWEEN = 50, 500


def evaluation_steps(steps_per_epoch: int) -> int:
    """Steps between evaluations of a training whose end is open: half an epoch, within limits."""
    return min(max(steps_per_epoch // 2, LEAST_BETWEEN), MOST_BETWEEN)


# Up to so many rows a checkpoint is fine-tuned for a number of epochs; with more, until dev no longer rises.
COUNTED_ROWS = 24_000
# With fewer rows, which checkpoint is best on dev is chance: the last one is kept.
LEAST_TO_SELECT = 500


# Epochs and steps of a checkpoint, at least. Half as many steps lost 11 points of macro-F1 on 300 SemEval sentences.
LEAST_EPOCHS, LEAST_STEPS = 4, 400


def pretrained_epochs(steps_per_epoch: int) -> int:
    """Epochs for a checkpoint: LEAST_EPOCHS, and more where they are fewer than LEAST_STEPS steps."""
    return max(LEAST_EPOCHS, math.ceil(LEAST_STEPS / steps_per_epoch))


def pretrained_rate(width: int | None) -> float:
    """The learning rate for a checkpoint: what is known to serve a base, of width 768, and more for narrower ones.

    Args:
        width: hidden size; None where it is not known.
    """
    return 5e-5 * min(max(768 / (width or 768), 1.0), 2.0) ** 2


def described(name: str) -> str | None:
    """What the recipes settle a choice to, as a help text says it; None for a choice that they leave open."""
    scratch, pretrained, counted, released = (
        RECIPES[recipe].get(name) for recipe in ("scratch", "pretrained", "counted", "released")
    )
    if scratch is None:
        return None
    whatever = pretrained == scratch or (pretrained is None and released is None)
    parts = [shown(scratch) if whatever else f"{shown(scratch)} from scratch"]
    parts += [f"{shown(pretrained)} with --from"] if pretrained not in (scratch, None) else []
    parts += [f"{shown(counted)} with --epochs or --max-steps"] if counted not in (pretrained, None) else []
    parts += [f"{shown(released)} with --protocol released"] if released not in (pretrained, None) else []
    return ", ".join(parts)

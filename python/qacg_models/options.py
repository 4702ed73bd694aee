"""How a model is trained: every choice, with its default, its help text and its limits, in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .errors import InputError


def _choice(default, text: str, *choices: str):
    return field(default=default, metadata={"help": text, "choices": choices or None})


@dataclass(frozen=True)
class TrainingOptions:
    """How to train. The defaults suit the bundled sample and a model without pretrained weights.

    The fields are the arguments; the help text beside each says what it means.

    Raises:
        InputError: a value outside its range.
    """

    epochs: int = _choice(16, "passes over the training split")
    batch_size: int = _choice(64, "rows per step")
    learning_rate: float = _choice(
        2e-3, "highest rate; rises over the first tenth of the steps, falls to 0 in a line"
    )
    balance: float = _choice(
        0.3, "how far the drawing of rows evens out classes: 0 not at all, 1 draws every class equally often"
    )
    weight_decay: float = _choice(0.01, "of AdamW, on all but biases and LayerNorm")
    dropout: float = _choice(0.2, "of hidden states and of attention, in [0, 1)")
    initializer_range: float = _choice(0.08, "standard deviation of initial weights")
    max_length: int = _choice(128, "most tokens of an input, special tokens included; what is over is cut")
    hidden_size: int = _choice(64, "width of the model")
    layers: int = _choice(2, "number of layers")
    heads: int = _choice(4, "attention heads per layer")
    intermediate_size: int = _choice(256, "width inside the feed-forward blocks")
    vocab_size: int = _choice(4000, "most pieces of a vocabulary learned from the training split")
    pooler: str = _choice(
        "attention",
        "what the classifier reads: the first token or an average over tokens",
        "cls",
        "attention",
    )
    context_projection: str = _choice("hidden", "context projections: whole or per head", "hidden", "head")
    context_standalone: bool = _choice(
        True, "give the aspect by context id only, without its name as a second segment"
    )
    attention: str = _choice("fused", "implementation of attention", "fused", "eager")
    threads: int = _choice(1, "CPU threads; 0 leaves it to torch, which pays off for larger models")
    seed: int = _choice(0, "of initial weights, order and dropout")

    def __post_init__(self):
        for name in ("epochs", "batch_size", "hidden_size", "layers", "heads", "intermediate_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1; got {getattr(self, name)}")
        for name in ("learning_rate", "initializer_range"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} must be a positive number; got {getattr(self, name)}")
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"weight_decay must be at least 0; got {self.weight_decay}")
        if not 0 <= self.balance <= 1:
            raise InputError(f"balance must be from 0 to 1; got {self.balance}")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout must be in [0, 1); got {self.dropout}")
        for name in ("seed", "threads"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must be at least 0; got {getattr(self, name)}")
        if self.hidden_size % self.heads:
            raise InputError(
                f"hidden_size must be a multiple of heads; got {self.hidden_size} and {self.heads}"
            )

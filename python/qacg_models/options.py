"""How a model is trained: every choice, with its default and its limits."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingOptions:
    """How to train; the defaults suit the bundled sample and a model without pretrained weights.

    Args:
        epochs: passes over the training split.
        batch_size: rows per step.
        learning_rate: highest rate; it rises over the first tenth of the steps and falls to 0 in a line.
        weight_decay: AdamW's, on everything but biases and LayerNorm.
        dropout: of hidden states and of attention.
        max_length: most tokens of an input, special tokens included.
        hidden_size, layers, heads, intermediate_size: sizes of the model.
        vocab_size: most pieces of a vocabulary learned from the training split.
        pooler, context_projection: variants of the model, see `QACGBertConfig`.
        context_standalone: give the aspect by context id only, without its name as a second segment.
        attention: `"fused"` or `"eager"`.
        seed: of weights, order and dropout.

    Raises:
        ValueError: a value outside its range.
    """

    epochs: int = 20
    batch_size: int = 32
    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    dropout: float = 0.1
    max_length: int = 128
    hidden_size: int = 128
    layers: int = 2
    heads: int = 4
    intermediate_size: int = 512
    vocab_size: int = 4000
    pooler: str = "cls"
    context_projection: str = "hidden"
    context_standalone: bool = False
    attention: str = "fused"
    seed: int = 0

    def __post_init__(self):
        for name in ("epochs", "batch_size", "hidden_size", "layers", "heads", "intermediate_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be a positive number; got {self.learning_rate}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be at least 0; got {self.weight_decay}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1); got {self.dropout}")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0; got {self.seed}")

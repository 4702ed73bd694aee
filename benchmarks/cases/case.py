"""What is measured: shapes, and cases of them."""

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch

from benchmarks.cases.lengths import sentence_lengths

FORWARD = "forward"  # inference: under no_grad
TRAINING_FORWARD = "training-forward"  # what a training step's forward costs: with all that its backward needs
FORWARD_BACKWARD = "forward+backward"  # the gradients of all six inputs
BACKWARD = "backward"  # the same gradients, the forward before the clock starts
MODES = (FORWARD, TRAINING_FORWARD, FORWARD_BACKWARD, BACKWARD)
FULL = "full"  # every sequence as long as the shape says
PADDED = "padded"  # lengths as `lengths.sentence_lengths` gives them, in a padded batch that says so
PACKED = "packed"  # the same sequences one after another, without padding
LENGTHS = (FULL, PADDED, PACKED)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MAIN_DTYPES = ("float32", "bfloat16")  # of the suite and of whole steps


class Shape(NamedTuple):
    """Sizes of a call. `length` counts queries, and keys too unless the case has another number of them."""

    batch: int
    heads: int
    length: int
    head_dim: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """From "64,12,128,64".

        Raises:
            ValueError: it is not four positive integers.
        """
        try:
            sizes = [int(part) for part in text.split(",")]
        except ValueError:
            sizes = []
        if len(sizes) != 4 or min(sizes) < 1:
            raise ValueError(f"shape: got {text!r}, wanted B,H,L,D such as 64,12,128,64")
        return cls(*sizes)

    def __str__(self) -> str:
        return f"({self.batch},{self.heads},{self.length},{self.head_dim})"


SENTENCES = Shape(64, 12, 128, 64)
PARAGRAPHS = Shape(8, 12, 512, 64)
DOCUMENTS = Shape(2, 12, 2048, 64)
MAIN_SHAPES = (SENTENCES, PARAGRAPHS, DOCUMENTS)
QUICK_SHAPES = (Shape(4, 4, 128, 64), Shape(1, 4, 512, 64))
MEMORY_SHAPE = Shape(1, 12, 8192, 64)


@dataclass(frozen=True)
class Case:
    """One thing to time."""

    shape: Shape
    dtype: str = "float32"
    mode: str = FORWARD
    dropout: float = 0.0
    device: str = "cpu"
    lengths: str = FULL
    keys: int | None = None  # None: as many as queries

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: got {self.dtype!r}, wanted one of {', '.join(DTYPES)}")
        if self.mode not in MODES:
            raise ValueError(f"mode: got {self.mode!r}, wanted one of {', '.join(MODES)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: got {self.dropout}, wanted a number in [0, 1)")
        if self.lengths not in LENGTHS:
            raise ValueError(f"lengths: got {self.lengths!r}, wanted one of {', '.join(LENGTHS)}")
        if self.keys is not None and (self.keys < 1 or self.lengths != FULL):
            raise ValueError(f"keys: expected a positive number beside lengths 'full', got {self.keys}")

    @property
    def key_count(self) -> int:
        return self.shape.length if self.keys is None else self.keys

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        batch, _, length, _ = self.shape
        return (length,) * batch if self.lengths == FULL else sentence_lengths(batch, length)

    @property
    def products(self) -> int:
        """Multiply-adds of one matrix product over all cells that count: of padding, none does."""
        cells = sum(n * (self.keys or n) for n in self.sequence_lengths)
        return self.shape.heads * self.shape.head_dim * cells

    @property
    def place(self) -> str:
        """The shape, and how its sequences lie if they are not all as long as it says."""
        keys = "" if self.keys is None else f" x {self.keys} keys"
        return f"{self.shape}{keys}" if self.lengths == FULL else f"{self.shape} {self.lengths}"

    def __str__(self) -> str:
        dropout = f" dropout {self.dropout:g}" if self.dropout else ""
        device = "" if self.device == "cpu" else f" on {self.device}"
        lengths = "" if self.lengths == FULL else f" {self.lengths}"
        keys = "" if self.keys is None else f" x {self.keys} keys"
        return f"{self.shape}{keys} {self.dtype} {self.mode}{lengths}{dropout}{device}"


def grid(shapes, dtypes, modes, dropouts, lengths=(FULL,)) -> list[Case]:
    """All combinations, but for dropout in an inference forward, where no model has any."""
    return [
        Case(shape, dtype, mode, dropout, "cpu", form)
        for shape, dtype, mode, dropout, form in product(shapes, dtypes, modes, dropouts, lengths)
        if not (dropout and mode == FORWARD)
    ]

"""What is measured: shapes, cases, and the random tensors of a case."""

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

FORWARD = "forward"  # inference: under no_grad
FORWARD_BACKWARD = "forward+backward"  # the gradients of all six inputs
MODES = (FORWARD, FORWARD_BACKWARD)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Shape(NamedTuple):
    """Self-attention: as many keys as queries."""

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

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: got {self.dtype!r}, wanted one of {', '.join(DTYPES)}")
        if self.mode not in MODES:
            raise ValueError(f"mode: got {self.mode!r}, wanted one of {', '.join(MODES)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: got {self.dropout}, wanted a number in [0, 1)")

    def __str__(self) -> str:
        dropout = f" dropout {self.dropout:g}" if self.dropout else ""
        device = "" if self.device == "cpu" else f" on {self.device}"
        return f"{self.shape} {self.dtype} {self.mode}{dropout}{device}"


def grid(shapes, dtypes, modes, dropouts, device: str = "cpu") -> list[Case]:
    """All combinations, but for dropout in an inference forward, where no model has any."""
    return [
        Case(shape, dtype, mode, dropout, device)
        for shape, dtype, mode, dropout in product(shapes, dtypes, modes, dropouts)
        if not (dropout and mode == FORWARD)
    ]


class Inputs(NamedTuple):
    """The operands of one call and the gradient that arrives at its output."""

    query: Tensor  # (B, H, L, D), as the four that follow
    key: Tensor
    value: Tensor
    context_query: Tensor
    context_key: Tensor
    gate_lambda: Tensor  # (B, H, L)
    grad_out: Tensor  # (B, H, L, D)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return self[:6]


def draw(case: Case, generator: torch.Generator) -> Inputs:
    """Random inputs: N(0, 1), and lambda uniform in [-1, 1], the range a trained gate has."""
    rows = tuple(case.shape[:3])

    def place(t: Tensor) -> Tensor:
        return t.to(case.device, DTYPES[case.dtype])

    wide = [place(torch.randn((*rows, case.shape.head_dim), generator=generator)) for _ in range(6)]
    operands = (*wide[:5], place(2 * torch.rand(rows, generator=generator) - 1))
    if case.mode == FORWARD_BACKWARD:
        operands = tuple(t.requires_grad_() for t in operands)
    return Inputs(*operands, wide[5])


_SETS_BYTES = 1 << 30
_MOST_SETS = 8


def draw_sets(case: Case, seed: int = 0) -> list[Inputs]:
    """Two to eight sets of inputs to rotate through, about 1 GiB at most, so that none stays in a cache."""
    generator = torch.Generator().manual_seed(seed)
    first = draw(case, generator)
    size = sum(t.nbytes for t in first)
    count = max(2, min(_MOST_SETS, _SETS_BYTES // size))
    return [first, *(draw(case, generator) for _ in range(count - 1))]

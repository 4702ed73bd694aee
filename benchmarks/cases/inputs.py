"""The random tensors of a case."""

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.cases.case import DTYPES, FORWARD, PACKED, PADDED, Case


class Inputs(NamedTuple):
    """The operands of one call and the gradient that arrives at its output; packed tensors are (T, H, D)."""

    query: Tensor  # (B, H, L, D), as context_query and grad_out
    key: Tensor  # (B, H, S, D), as value and context_key
    value: Tensor
    context_query: Tensor
    context_key: Tensor
    gate_lambda: Tensor  # (B, H, L)
    grad_out: Tensor  # (B, H, L, D); 0 at padding, as a loss leaves it

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return self[:6]


def draw(case: Case, generator: torch.Generator) -> Inputs:
    """Random inputs, drawn where the generator is: N(0, 1), and lambda uniform in [-1, 1], a trained gate's range."""
    batch, heads, length, head_dim = case.shape
    rows = (sum(case.sequence_lengths), heads) if case.lengths == PACKED else (batch, heads, length)

    def place(t: Tensor) -> Tensor:
        return t.to(case.device, DTYPES[case.dtype])

    def normal(*sizes: int) -> Tensor:
        return place(torch.randn((*sizes, head_dim), generator=generator, device=generator.device))

    key_rows = rows if case.keys is None else (batch, heads, case.keys)
    wide = [normal(*sizes) for sizes in (rows, key_rows, key_rows, rows, key_rows, rows)]
    gate = 2 * torch.rand(rows, generator=generator, device=generator.device) - 1
    operands = (*wide[:5], place(gate))
    if case.lengths == PADDED:
        wide[5].masked_fill_(padding(case)[:, None, :, None], 0.0)
    if case.mode != FORWARD:
        operands = tuple(t.requires_grad_() for t in operands)
    return Inputs(*operands, wide[5])


def key_lengths(case: Case) -> Tensor:
    """(B,) int64 on the case's device."""
    return torch.tensor(case.sequence_lengths, device=case.device)


def padding(case: Case) -> Tensor:
    """(B, L), True beyond a sequence's length."""
    return torch.arange(case.shape.length, device=case.device) >= key_lengths(case)[:, None]


def offsets(case: Case) -> Tensor:
    """(B + 1,) int32, where each sequence of a packed batch begins."""
    return torch.tensor([0, *accumulate(case.sequence_lengths)], dtype=torch.int32, device=case.device)


_SETS_BYTES = 1 << 30
_MOST_SETS = 8


def draw_sets(case: Case, seed: int = 0) -> list[Inputs]:
    """Two to eight sets of inputs to rotate through, about 1 GiB at most, so that none stays in a cache."""
    generator = torch.Generator(case.device).manual_seed(seed)
    first = draw(case, generator)
    size = sum(t.nbytes for t in first)
    count = max(2, min(_MOST_SETS, _SETS_BYTES // size))
    return [first, *(draw(case, generator) for _ in range(count - 1))]

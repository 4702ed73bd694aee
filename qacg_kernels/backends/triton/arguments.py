"""What the kernels are handed, grouped by what it is about.

Triton takes a tuple as it takes its members, so a kernel reads `call.key.data` and `call.key.row`; a member that is
None is known to be so when the kernel is compiled.

A group that holds another group ends in `constant`, which nobody reads. Triton takes an int that is 1 for a constant,
and so also a stride of 1. Triton 3.5 and 3.6 turn such a stride, two groups deep, into None at the next `if` or `for`
that is decided on the GPU, unless a later member of the outer group is a constant as well.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Strided(NamedTuple):
    """A (B, H, rows, D) tensor whose last stride is 1, or one value a row, (B, H, rows)."""

    data: Tensor
    batch: int
    head: int
    row: int


class Mask(NamedTuple):
    """A mask that broadcasts to (B, H, L, S): a stride is 0 where it does. Boolean ones come as bytes."""

    data: Tensor
    batch: int
    head: int
    row: int
    column: int


class PerHead(NamedTuple):
    """A gate vector (D) or (H, D), or a bias () or (H): the head's stride is 0 where all share it."""

    data: Tensor
    head: int


class Side(NamedTuple):
    """One side of the gate, eq. 4: sigmoid(x . vector + context . context_vector + bias)."""

    vector: PerHead
    context_vector: PerHead
    bias: PerHead | None
    constant: int = 1


class Gate(NamedTuple):
    query: Side
    key: Side
    beta: float
    gamma: float
    constant: int = 1


class Sizes(NamedTuple):
    """Of a packed call, `queries` and `keys` are those of the longest sequence, `tokens` of all together."""

    heads: int
    queries: int
    keys: int
    head_dim: int
    tokens: int


class Factors(NamedTuple):
    """Scalars of a call, folded on the host.

    score: scale * log2(e), so that exp2 serves for exp; keep and threshold: those of dropout.py.
    """

    scale: float
    score: float
    quasi: float
    keep: float
    threshold: int


class Call(NamedTuple):
    """The inputs of a call, as the operator has them; either gate_lambda or gate is None.

    Kernels ask whether gate_lambda is None: Triton 3.5 and 3.6 cannot ask it of a tuple that has a None inside.
    """

    query: Strided
    key: Strided
    value: Strided
    context_query: Strided
    context_key: Strided
    gate_lambda: Strided | None
    gate: Gate | None
    mask: Mask | None
    key_lengths: Tensor | None
    cu_seqlens: Tensor | None
    seed: Tensor | None
    sizes: Sizes
    factors: Factors
    constant: int = 1


class Saved(NamedTuple):
    """What the backward kernels read beside the inputs; rows are (B, H, L)."""

    grad_out: Strided
    softmax_out: Strided | None  # O1
    quasi_out: Strided | None  # O2
    row_max: Strided
    row_sum: Strided
    query_gate: Strided | None
    key_gate: Strided | None
    grad_query_gate: Strided | None
    grad_key_gate: Strided | None
    constant: int = 1


class Gradients(NamedTuple):
    """What the backward kernels write, and the rows that they hand to one another.

    delta: eq. 10. log_sum: log2 of a row's sum of exponentials; weight: alpha lambda of eq. 5, of a column gate its
    part by row. Both are None where a row's keys are one block, whose kernel needs each but once. query_logit and
    key_logit: tq and tk of eq. 14, from which the gate's parameters get theirs. query and context_query are None for
    the kernel over key blocks of tiled rows.
    """

    query: Strided | None
    key: Strided
    value: Strided
    context_query: Strided | None
    context_key: Strided
    gate_lambda: Strided | None
    query_logit: Strided | None
    key_logit: Strided | None
    delta: Strided | None
    log_sum: Strided | None
    weight: Strided | None
    constant: int = 1


class Place(NamedTuple):
    """Where a program works; made inside the kernels."""

    sequence: int
    head: int
    first: int  # row of the sequence's first token: 0 unless packed
    queries: int
    keys: int
    seen_keys: int  # keys below the sequence's length


class Operand(NamedTuple):
    """Rows of an input that take part in products; made inside the kernels.

    tile: (rows, block_d). With `config.by_parts` products read from memory, and `rows` is a placeholder here.
    """

    source: Strided
    first: int
    rows: Tensor
    stop: int  # rows from here on count as 0
    tile: Tensor


@dataclass(frozen=True, eq=False)
class KernelConfig:
    """What a kernel is compiled for. Compared by identity, which is quick at every launch: `launch` keeps one of each.

    Attributes:
        whole_row: no row has more than block_n keys, and they are taken as one tile.
        even_keys: there is no last block of keys in part: with whole_row, every sequence has block_n keys.
        even_dim: the head size is block_d, which is a power of two of at least 16.
        fast_sigmoid: by a polynomial, for 16 bits.
        folds_scale: `factors.score` is positive, so that a row's maximum may be taken before the scores are scaled, and
            the scaling be part of a multiply-add.
        precision: of products of float32, "ieee" or "tf32".
        by_parts: products take few features or keys at a time, from memory: float32, whose exact products keep their
            operands in registers, where those of a whole tile would not fit.
        block_m, block_n: queries and keys of a tile.
    """

    is_causal: bool
    column_gate: bool
    whole_row: bool
    even_keys: bool
    even_dim: bool
    fast_sigmoid: bool
    folds_scale: bool
    precision: str
    by_parts: bool
    block_m: int
    block_n: int
    block_d: int


def strided(t: Tensor | None, packed: bool) -> Strided | None:
    """Rows of a dense (B, H, rows, ...) or a packed (T, H, ...) tensor."""
    return None if t is None else Strided(t, *strides(t, packed))


def strides(t: Tensor, packed: bool) -> tuple[int, int, int]:
    """Those of Strided, of such a tensor."""
    if packed:
        row, head, *_ = t.stride()
        return 0, head, row
    return t.stride()[:3]


def has_dense_rows(t: Tensor) -> bool:
    """Whether a row's features lie side by side, as kernels read them."""
    return t.stride(-1) == 1 or t.shape[-1] == 1


def mask_of(t: Tensor | None) -> Mask | None:
    if t is None:
        return None
    strides = [0 if n == 1 else s for n, s in zip(t.shape, t.stride())]
    return Mask(t.view(torch.uint8) if t.dtype == torch.bool else t, *strides)


def per_head(t: Tensor | None, shared_dims: int) -> PerHead | None:
    """A gate vector (shared_dims = 1) or a bias (shared_dims = 0)."""
    if t is None:
        return None
    t = t.contiguous()
    return PerHead(t, 0 if t.dim() == shared_dims else t.stride(0))

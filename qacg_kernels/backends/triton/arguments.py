"""Argument groups of the kernels, as named tuples.

Triton flattens tuples, so a kernel reads `call.key.data` and `call.key.row`. A member that is None is a compile-time
constant.

A tuple that contains another tuple ends in an unused `constant`. Triton treats an int of 1, such as a stride, as a
constant. Triton 3.5 and 3.6 turn such a stride in a nested tuple into None at the next `if` or `for` decided on the
GPU, unless a later member of the outer tuple is a constant too.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Strided(NamedTuple):
    """A (B, H, rows, D) tensor with unit last stride, or a (B, H, rows) tensor."""

    data: Tensor
    batch: int
    head: int
    row: int


class Mask(NamedTuple):
    """A mask that broadcasts to (B, H, L, S) by strides of 0. Boolean masks are bytes."""

    data: Tensor
    batch: int
    head: int
    row: int
    column: int


class Integers(NamedTuple):
    """A vector of int32 or int64, `step` elements apart: int64 lengths on a CPU are read by their low halves."""

    data: Tensor
    step: int


class PerHead(NamedTuple):
    """A gate vector (D) or (H, D), or a bias () or (H); the head stride is 0 if all heads share it."""

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
    """Sizes of a call. For packed calls `queries` and `keys` are the longest sequence's, `tokens` the total."""

    heads: int
    queries: int
    keys: int
    head_dim: int
    tokens: int


class Factors(NamedTuple):
    """Scalars of a call. score: scale * log2(e), for exp2 instead of exp; keep and threshold: see dropout.py."""

    scale: float
    score: float
    quasi: float
    keep: float
    threshold: int


class Call(NamedTuple):
    """The inputs of a call; either gate_lambda or gate is None.

    Kernels test gate_lambda: Triton 3.5 and 3.6 cannot test whether a tuple that contains None is None.
    """

    query: Strided
    key: Strided
    value: Strided
    context_query: Strided
    context_key: Strided
    gate_lambda: Strided | None
    gate: Gate | None
    mask: Mask | None
    key_lengths: Integers | None
    cu_seqlens: Integers | None
    seed: Tensor | None
    sizes: Sizes
    factors: Factors
    constant: int = 1


class Saved(NamedTuple):
    """Tensors that the backward kernels read beside the inputs; rows are (B, H, L)."""

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
    """Tensors that the backward kernels write, and the row terms that they exchange.

    delta: eq. 10. log_sum: log2 of a row's sum of exponentials. weight: alpha lambda of eq. 5; for a column gate its
    row's part. The three are None for single-tile rows. query_logit and key_logit: tq and tk of eq. 14, from which the
    gradients of the gate's parameters are computed. query and context_query are None for
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
    """The sequence and head of a program; created inside the kernels."""

    sequence: int
    head: int
    first: int  # row of the sequence's first token: 0 unless packed
    queries: int
    keys: int
    seen_keys: int  # keys below the sequence's length


class Operand(NamedTuple):
    """Rows of an input as an operand of products; created inside the kernels.

    tile: (rows, block_d). With `config.by_parts` products read from memory, and `rows` is a placeholder here.
    """

    source: Strided
    first: int
    rows: Tensor
    stop: int  # rows from here on count as 0
    tile: Tensor


@dataclass(frozen=True, eq=False)
class KernelConfig:
    """The compile-time configuration of a kernel. `kernel_config` caches instances, so they compare by identity.

    Attributes:
        key_mask: the mask is the same for all queries, and read as one value per key.
        whole_row: single-tile rows, of at most block_n keys.
        even_keys: every block of keys is full; with whole_row, every sequence has block_n keys.
        even_dim: the head size is block_d, which is a power of two of at least 16.
        fast_sigmoid: by a polynomial, for 16 bits.
        folds_scale: `factors.score` is positive, so that the row maximum is taken of unscaled scores and the scaling is
            part of a multiply-add.
        precision: of products of float32, "ieee" or "tf32".
        by_parts: products read a few features or keys at a time. Exact float32 products keep their operands in
            registers, and a whole tile would not fit.
        block_m, block_n: queries and keys of a tile.
    """

    is_causal: bool
    column_gate: bool
    key_mask: bool
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
    """A dense (B, H, rows, ...) or packed (T, H, ...) tensor as Strided."""
    return None if t is None else Strided(t, *strides(t, packed))


def strides(t: Tensor, packed: bool) -> tuple[int, int, int]:
    """The strides of batch, head and row of a tensor as in `strided`; packed tensors have batch stride 0."""
    if packed:
        row, head, *_ = t.stride()
        return 0, head, row
    return t.stride()[:3]


def has_dense_rows(t: Tensor) -> bool:
    """Whether the last stride is 1, as the kernels require."""
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

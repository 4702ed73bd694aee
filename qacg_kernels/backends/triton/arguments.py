"""Argument groups of the kernels, as named tuples. Equation numbers ("eq. 4") refer to qacg_kernels/MATH.md.

A kernel reads members such as `call.key.data`. Triton passes each member as a separate argument. A member that is None
is a compile-time constant.

Triton 3.6 has a bug. It treats an argument that is the int 1, such as a stride, as a compile-time constant.
After an `if` or `for` that is decided on the GPU, they replace such a constant in a nested tuple by None. A constant in
a later field of the outer tuple prevents this. So every tuple that is an argument and contains another tuple ends with
an unused field `constant`. `Operand` has no such field, because kernels create it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Strided(NamedTuple):
    """A (B, H, rows, D) tensor whose last stride is 1, or a (B, H, rows) tensor, with its other strides.

    `batch`, `head` and `row` are the strides in elements. Packed tensors, (T, H, D) or (T, H), have batch stride 0.
    """

    data: Tensor
    batch: int
    head: int
    row: int


class Mask(NamedTuple):
    """A mask that broadcasts to (B, H, L, S), with its strides. Boolean masks are passed as bytes.

    `batch`, `head`, `row` and `column` are the strides in elements, 0 in dimensions that broadcast.
    """

    data: Tensor
    batch: int
    head: int
    row: int
    column: int


class Integers(NamedTuple):
    """A vector of int32 or int64 values with a stride of `step` elements."""

    data: Tensor
    step: int


class PerHead(NamedTuple):
    """A gate vector (D), (1, D) or (H, D), or a bias (), (1) or (H).

    `head` is its stride between heads, 0 if all heads share it.
    """

    data: Tensor
    head: int


class Side(NamedTuple):
    """Parameters of lq or lk, eq. 4: sigmoid(x . vector + context . context_vector + bias + context_bias)."""

    vector: PerHead
    context_vector: PerHead
    bias: PerHead | None
    context_bias: PerHead | None
    constant: int = 1


class Gate(NamedTuple):
    """Parameters of lambda = 1 - (beta lq + gamma lk), eq. 5 and 6: `query` for lq and `key` for lk."""

    query: Side
    key: Side
    beta: float
    gamma: float
    constant: int = 1


class Sizes(NamedTuple):
    """Sizes of a call. In packed calls `queries` and `keys` are max_seqlen and `tokens` is T; else `tokens` is 0."""

    heads: int
    queries: int
    keys: int
    head_dim: int
    tokens: int


class Factors(NamedTuple):
    """Scalars of a call."""

    scale: float  # the factor on the scores, eq. 2
    score: float  # scale * log2(e), because the kernels compute exp2 instead of exp
    quasi: float  # alpha, eq. 3
    keep: float  # `dropout.keep_scale`
    threshold: int  # `dropout.drop_threshold`


class Call(NamedTuple):
    """The inputs of a call. Exactly one of gate_lambda and gate is None; seed is None without dropout.

    quasi_bias has stride 0 in dimensions that broadcast. Kernels test whether gate_lambda is None, not gate, because
    Triton 3.6 cannot compare a tuple that contains None with None.
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
    quasi_bias: Strided | None
    sizes: Sizes
    factors: Factors
    constant: int = 1


class Saved(NamedTuple):
    """Tensors that the backward kernels read in addition to the inputs.

    grad_out, softmax_out and quasi_out have shape (B, H, L, D). The others have shape (B, H, L), except that key_gate
    and grad_key_gate have shape (B, H, S) for a column gate.

    softmax_out may be None for single-tile rows, and quasi_out for single-tile rows or a column gate. query_gate and
    key_gate are None in a call with gate_lambda. grad_query_gate and grad_key_gate are None if there is no upstream
    gradient.
    """

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
    """Tensors that the backward kernels write: gradients, and values per row that one kernel passes to the next.

    Attributes:
        query, context_query: None in the kernel over key blocks of tiled rows, which does not write them.
        query_logit, key_logit: tq and tk of eq. 14, from which the gradients of the gate's parameters are computed.
        delta: delta of eq. 10. Like shift and weight, it is None for single-tile rows.
        shift: number that is subtracted from every exponent of a row before exp2. For float32 inputs it is the row's
            largest exponent. For 16-bit inputs, log2 of the row's sum of exponentials is added to it.
        weight: alpha lambda of eq. 5; for a column gate alpha (1 - beta lq), the part that depends on the row.
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
    shift: Strided | None
    weight: Strided | None
    constant: int = 1


class Place(NamedTuple):
    """The sequence and head that a program computes, with the sequence's sizes; created inside the kernels."""

    sequence: int
    head: int
    first: int  # row of the sequence's first token: 0 unless packed
    queries: int
    keys: int
    seen_keys: int  # number of keys before the length in key_lengths; later keys are hidden


class Operand(NamedTuple):
    """Rows of an input as an operand of matrix products; created inside the kernels.

    `tile` holds the rows, (rows, block_d). With `config.by_parts` the products read the rows from memory instead, and
    `tile` is a placeholder.
    """

    source: Strided
    first: int
    rows: Tensor
    stop: int  # rows at and beyond this index count as 0
    tile: Tensor


@dataclass(frozen=True, eq=False)
class KernelConfig:
    """The compile-time configuration of a kernel. `launch` caches instances, so they compare by identity.

    Attributes:
        key_mask: whether the call has a mask that is the same for all queries, which is read as one value per key.
        whole_row: whether a tile holds whole rows, of at most block_n keys ("single-tile rows").
        even_keys: whether every block of keys is full; with whole_row, whether every sequence has block_n keys.
        even_dim: whether the head size equals block_d.
        fast_sigmoid: whether a polynomial replaces the division in the sigmoid, for 16-bit inputs.
        folds_scale: whether `factors.scale` is positive and large enough that a GPU does not flush it to 0. The row
            maximum is then computed from unscaled scores, and the scaling becomes part of a multiply-add.
        precision: precision of float32 products, "ieee" or "tf32".
        by_parts: whether products read 16 features or rows at a time. Exact float32 products keep their operands in
            registers, where a whole tile does not fit.
        block_m, block_n: number of queries and of keys in a tile.
        block_d: number of features in a tile: the smallest power of two that is at least the head size and 16.
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

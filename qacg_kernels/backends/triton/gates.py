"""The gate's kernels, whose work grows with rows x D."""

import triton
import triton.language as tl

from qacg_kernels.backends.triton.tiles import (
    gate_logit_sigmoid,
    load_rows,
    load_tile,
    place_of,
    store_rows,
)


@triton.jit
def row_gate(rows, present, query_gate, key_gate, place, call, config: tl.constexpr):
    """lambda of each row, eq. 5, (M); for a column gate 1 - beta lq. Stores the gates."""
    if call.gate_lambda is not None:
        lam = load_rows(call.gate_lambda, place, rows, present)
    else:
        lq = gate_logit_sigmoid(call.query, call.context_query, rows, present, call.gate.query, place, call, config)
        store_rows(query_gate, place, rows, present, lq)
        lam = 1.0 - call.gate.beta * lq
        if not config.column_gate:
            lk = gate_logit_sigmoid(call.key, call.context_key, rows, present, call.gate.key, place, call, config)
            store_rows(key_gate, place, rows, present, lk)
            lam -= call.gate.gamma * lk
    return lam


@triton.jit
def row_gates_kernel(call, query_gate, key_gate, row_gates, config: tl.constexpr):
    """lambda and gates of config.block_m rows of one head, eq. 5, for a forward that takes lambda as input."""
    blocks = tl.cdiv(call.sizes.queries, config.block_m)
    place = place_of(tl.program_id(0) // blocks, call)
    rows = tl.program_id(0) % blocks * config.block_m + tl.arange(0, config.block_m)
    present = rows < place.queries
    store_rows(row_gates, place, rows, present, row_gate(rows, present, query_gate, key_gate, place, call, config))


@triton.jit
def key_gates_kernel(call, key_gate, config: tl.constexpr):
    """lk of a column gate, eq. 4, for config.block_n keys of one head; keys beyond the length are treated as 0."""
    blocks = tl.cdiv(call.sizes.keys if call.cu_seqlens is None else call.sizes.queries, config.block_n)
    place = place_of(tl.program_id(0) // blocks, call)
    keys = tl.program_id(0) % blocks * config.block_n + tl.arange(0, config.block_n)
    seen = keys < place.seen_keys
    lk = gate_logit_sigmoid(call.key, call.context_key, keys, seen, call.gate.key, place, call, config)
    store_rows(key_gate, place, keys, keys < place.keys, lk)


@triton.jit
def gate_sums_kernel(call, query_logit, key_logit, sums, ROWS: tl.constexpr, config: tl.constexpr):
    """Sums of t x, t c and t over ROWS rows of one sequence and head and of one side of the gate, eq. 14.

    query_logit, key_logit: tq and tk. sums: (sequences, heads, chunks, 2 block_d + 1) float32, one program per row; the
    chunks of a head's queries come first. Keys that are hidden from a column gate are not read.
    """
    of_queries, of_keys = _chunks(call, ROWS)
    place = place_of(tl.program_id(0) // (of_queries + of_keys), call)
    chunk = tl.program_id(0) % (of_queries + of_keys)
    target = sums + tl.program_id(0).to(tl.int64) * (2 * config.block_d + 1)
    if chunk < of_queries:
        stop = place.queries
        _sum_rows(call.query, call.context_query, query_logit, chunk, stop, stop, place, target, call, ROWS, config)
    else:
        chunk -= of_queries
        stop = place.keys
        readable = place.seen_keys if config.column_gate else stop
        _sum_rows(call.key, call.context_key, key_logit, chunk, stop, readable, place, target, call, ROWS, config)


@triton.jit
def _chunks(call, ROWS: tl.constexpr):
    """The number of chunks of ROWS rows of a head's queries, and of its keys."""
    keys = call.sizes.keys if call.cu_seqlens is None else call.sizes.queries
    return tl.cdiv(call.sizes.queries, ROWS), tl.cdiv(keys, ROWS)


@triton.jit
def _sum_rows(x, context, logit, chunk, stop, readable, place, target, call, ROWS: tl.constexpr, config: tl.constexpr):
    """A row of `sums`, over a chunk's rows of x and context up to `stop`; rows from `readable` on are treated as 0."""
    features = tl.arange(0, config.block_d)
    of_x = tl.full((config.block_d,), 0.0, tl.float32)
    of_context = tl.full((config.block_d,), 0.0, tl.float32)
    of_bias = tl.full((config.block_m,), 0.0, tl.float32)
    for first in range(chunk * ROWS, tl.minimum((chunk + 1) * ROWS, stop), config.block_m):
        rows = first + tl.arange(0, config.block_m)
        t = load_rows(logit, place, rows, rows < stop)
        of_x += tl.sum(t[:, None] * load_tile(x, place, rows, rows < readable, call, config).to(tl.float32), 0)
        of_context += tl.sum(
            t[:, None] * load_tile(context, place, rows, rows < readable, call, config).to(tl.float32), 0
        )
        of_bias += t
    tl.store(target + features, of_x)
    tl.store(target + config.block_d + features, of_context)
    tl.store(target + 2 * config.block_d, tl.sum(of_bias, 0))


@triton.jit(do_not_specialize=("sequences",))
def gate_gradients_kernel(call, sums, sequences, gradients, ROWS: tl.constexpr, config: tl.constexpr):
    """Gradients of the gate's vectors and biases from `gate_sums_kernel`'s sums; one program per head and side.

    gradients: laid out as the gate. If heads share a parameter, the first head's program sums over all heads.
    """
    head, side = tl.program_id(0) // 2, tl.program_id(0) % 2
    of_queries, of_keys = _chunks(call, ROWS)
    chunks = of_queries + of_keys
    if side == 0:
        _side_gradients(gradients.query, sums, sequences, head, 0, of_queries, chunks, call, config)
    else:
        _side_gradients(gradients.key, sums, sequences, head, of_queries, of_keys, chunks, call, config)


@triton.jit
def _side_gradients(side, sums, sequences, head, first, count, chunks, call, config: tl.constexpr):
    """Gradients of one side, whose sums are the chunks first to first + count - 1 of each head."""
    features = tl.arange(0, config.block_d)
    present = features < call.sizes.head_dim
    x, context = features, config.block_d + features  # columns of the sums
    _gradient(side.vector, features, present, sums, x, sequences, head, first, count, chunks, call, config)
    _gradient(
        side.context_vector, features, present, sums, context, sequences, head, first, count, chunks, call, config
    )
    if side.bias is not None:
        one = tl.arange(0, 1)
        column = 2 * config.block_d + one
        _gradient(side.bias, one, one == 0, sums, column, sequences, head, first, count, chunks, call, config)


@triton.jit
def _gradient(
    parameter, elements, present, sums, columns, sequences, head, first, count, chunks, call, config: tl.constexpr
):
    """Gradient of one parameter: columns of the sums, over all sequences and, if heads share it, over all heads."""
    shared = parameter.head == 0
    heads = tl.where(shared, call.sizes.heads, 1)
    is_first_head = tl.where(shared, head, 0) == 0
    rows_of_sums = tl.where(is_first_head, sequences * heads * count, 0)
    total = tl.full(columns.shape, 0.0, tl.float32)
    for start in range(0, rows_of_sums, config.block_m):
        rows = start + tl.arange(0, config.block_m)
        sequence_and_head = tl.where(shared, rows // count, rows // count * call.sizes.heads + head)
        row = sequence_and_head.to(tl.int64) * chunks + first + rows % count
        pointers = sums + (row * (2 * config.block_d + 1))[:, None] + columns[None, :]
        total += tl.sum(tl.load(pointers, mask=(rows < rows_of_sums)[:, None], other=0.0), 0)
    target = parameter.data + head * parameter.head + elements
    if is_first_head:  # not in the mask: Triton 3.9's interpreter stores with masks of booleans only
        tl.store(target, total.to(parameter.data.dtype.element_ty), mask=present)

"""The kernels of the gate lambda and of its gradients. Their work is proportional to rows x D.

`call`, `place` and `config` are a Call, a Place and a KernelConfig of `arguments`. Equation numbers refer to
qacg_kernels/MATH.md. A row gate computes lk at the query's position, a column gate at the key's.
"""

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
    """Returns lambda of each row (eq. 5), (rows), or for a column gate 1 - beta lq.

    Unless the call has a lambda tensor, stores lq in `query_gate` and, for a row gate, lk in `key_gate`.
    """
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
def key_gates_kernel(call, key_gate, config: tl.constexpr):
    """Stores lk of a column gate (eq. 4) for config.block_n keys of one head.

    Features of keys at and beyond the sequence's length count as 0.
    """
    blocks = tl.cdiv(call.sizes.keys if call.cu_seqlens is None else call.sizes.queries, config.block_n)
    place = place_of(tl.program_id(0) // blocks, call)
    keys = tl.program_id(0) % blocks * config.block_n + tl.arange(0, config.block_n)
    seen = keys < place.seen_keys
    lk = gate_logit_sigmoid(call.key, call.context_key, keys, seen, call.gate.key, place, call, config)
    store_rows(key_gate, place, keys, keys < place.keys, lk)


@triton.jit
def gate_sums_kernel(call, query_logit, key_logit, sums, ROWS: tl.constexpr, config: tl.constexpr):
    """Stores the sums of t x, t c and t over each chunk of ROWS queries or keys (eq. 14).

    x are the features of a query or key, and c those of its context. Each program sums one chunk of one head and writes
    one row of `sums`. With a column gate, features of keys at and beyond the sequence's length count as 0.

    Args:
        query_logit, key_logit: t, which is tq for queries and tk for keys, one float32 value per row.
        sums: float32 (sequences, heads, chunks, 2 block_d + 4); chunks of queries come before chunks of keys. The last
            3 columns are unused, so that rows start at multiples of 16 bytes.
    """
    of_queries, of_keys = _chunks(call, ROWS)
    place = place_of(tl.program_id(0) // (of_queries + of_keys), call)
    chunk = tl.program_id(0) % (of_queries + of_keys)
    target = sums + tl.program_id(0).to(tl.int64) * (2 * config.block_d + 4)
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
    """Returns two numbers of chunks of ROWS rows: one for the queries of a head, and one for its keys."""
    keys = call.sizes.keys if call.cu_seqlens is None else call.sizes.queries
    return tl.cdiv(call.sizes.queries, ROWS), tl.cdiv(keys, ROWS)


@triton.jit
def _sum_rows(x, context, logit, chunk, stop, readable, place, target, call, ROWS: tl.constexpr, config: tl.constexpr):
    """Stores the sums of one chunk at `target`, over its rows below `stop`.

    Features of rows at and beyond `readable` count as 0.
    """
    features = tl.arange(0, config.block_d)
    # The loop adds tiles; the sum over rows comes after it, because each such sum uses shuffles and shared memory.
    of_x = tl.full((config.block_m, config.block_d), 0.0, tl.float32)
    of_context = tl.full((config.block_m, config.block_d), 0.0, tl.float32)
    of_bias = tl.full((config.block_m,), 0.0, tl.float32)
    for first in range(chunk * ROWS, tl.minimum((chunk + 1) * ROWS, stop), config.block_m):
        rows = first + tl.arange(0, config.block_m)
        t = load_rows(logit, place, rows, rows < stop)
        of_x += t[:, None] * load_tile(x, place, rows, rows < readable, call, config).to(tl.float32)
        of_context += t[:, None] * load_tile(context, place, rows, rows < readable, call, config).to(tl.float32)
        of_bias += t
    tl.store(target + features, tl.sum(of_x, 0))
    tl.store(target + config.block_d + features, tl.sum(of_context, 0))
    tl.store(target + 2 * config.block_d, tl.sum(of_bias, 0))


@triton.jit(do_not_specialize=("sequences",))
def gate_gradients_kernel(
    call, sums, sequences, gradients, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ADDED: tl.constexpr,
    config: tl.constexpr,
):  # fmt: skip
    """Stores the gradients of the gate's vectors and biases: the sums over the rows that `gate_sums_kernel` wrote.

    There is a program for each head, side of the gate and block of COLUMNS columns of `sums`; two for the last block,
    as either bias may be shared. A program adds ADDED rows per iteration. If the heads share a parameter, the program
    of the first head sums over all heads. `gradients` is a Gate with the gradients in place of the parameters.
    """
    blocks = 2 * config.block_d // COLUMNS + 2
    head, block = tl.program_id(0) // (2 * blocks), tl.program_id(0) % blocks
    of_queries, of_keys = _chunks(call, ROWS)
    chunks = of_queries + of_keys
    if tl.program_id(0) // blocks % 2 == 0:
        _gradient(gradients.query, sums, sequences, head, block, 0, of_queries, chunks, call, COLUMNS, ADDED, config)
    else:
        _gradient(
            gradients.key, sums, sequences, head, block, of_queries, of_keys, chunks, call, COLUMNS, ADDED, config
        )


@triton.jit
def _gradient(
    side, sums, sequences, head, block, first, count, chunks, call, COLUMNS: tl.constexpr, ADDED: tl.constexpr,
    config: tl.constexpr,
):  # fmt: skip
    """Stores COLUMNS elements of the gradients of one side of the gate.

    The side's rows of `sums` are, in each sequence and head, those of chunks first to first + count - 1.
    """
    is_vector = block < config.block_d // COLUMNS
    first_bias = 2 * config.block_d // COLUMNS
    stride = tl.where(is_vector, side.vector.head, side.context_vector.head)
    if side.bias is not None:
        stride = tl.where(block == first_bias, side.bias.head, stride)
    if side.context_bias is not None:
        stride = tl.where(block > first_bias, side.context_bias.head, stride)
    shared = stride == 0
    heads = tl.where(shared, call.sizes.heads, 1)
    own_head = tl.where(shared, 0, head)
    is_idle = shared & (head > 0)
    rows_of_sums = tl.where(is_idle, 0, sequences * heads * count)
    columns = tl.minimum(block, first_bias) * COLUMNS + tl.arange(0, COLUMNS)
    used = (columns <= 2 * config.block_d)[None, :]
    total = tl.full((ADDED, COLUMNS), 0.0, tl.float32)
    for start in range(0, rows_of_sums, ADDED):
        rows = start + tl.arange(0, ADDED)
        sequence_and_head = tl.where(shared, rows // count, rows // count * call.sizes.heads + own_head)
        row = sequence_and_head.to(tl.int64) * chunks + first + rows % count
        pointers = sums + (row * (2 * config.block_d + 4))[:, None] + columns[None, :]
        total += tl.load(pointers, mask=(rows < rows_of_sums)[:, None] & used, other=0.0)
    if not is_idle:
        values, features = tl.sum(total, 0), columns % config.block_d
        present = features < call.sizes.head_dim
        if is_vector:
            _store(side.vector, head, features, values, present)
        elif block < first_bias:
            _store(side.context_vector, head, features, values, present)
        elif block == first_bias:
            if side.bias is not None:
                _store(side.bias, head, features, values, features == 0)
        elif side.context_bias is not None:
            _store(side.context_bias, head, features, values, features == 0)


@triton.jit
def _store(parameter, head, elements, values, present):
    pointers = parameter.data + head * parameter.head + elements
    tl.store(pointers, values.to(parameter.data.dtype.element_ty), mask=present)

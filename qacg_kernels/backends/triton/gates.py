"""The gate's small kernels: work of rows x D, none of L x S."""

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
def row_gate(rows, present, query_gate, key_gate, place, call, form: tl.constexpr):
    """lambda of each row, eq. 5, or of a column gate its part 1 - beta lq, (M); stores the gates."""
    if call.gate_lambda is not None:
        lam = load_rows(call.gate_lambda, place, rows, present)
    else:
        lq = gate_logit_sigmoid(call.query, call.context_query, rows, present, call.gate.query, place, call, form)
        store_rows(query_gate, place, rows, present, lq)
        lam = 1.0 - call.gate.beta * lq
        if not form.column_gate:
            lk = gate_logit_sigmoid(call.key, call.context_key, rows, present, call.gate.key, place, call, form)
            store_rows(key_gate, place, rows, present, lk)
            lam -= call.gate.gamma * lk
    return lam


@triton.jit
def row_gates_kernel(call, query_gate, key_gate, row_gates, form: tl.constexpr):
    """lambda of form.block_m rows of one head, eq. 5, for a forward that takes it as given; its parts too."""
    blocks = tl.cdiv(call.sizes.queries, form.block_m)
    place = place_of(tl.program_id(0) // blocks, call)
    rows = tl.program_id(0) % blocks * form.block_m + tl.arange(0, form.block_m)
    present = rows < place.queries
    store_rows(row_gates, place, rows, present, row_gate(rows, present, query_gate, key_gate, place, call, form))


@triton.jit
def key_gates_kernel(call, key_gate, form: tl.constexpr):
    """lk of a column gate, eq. 4, for form.block_n keys of one head; keys beyond the length count as 0."""
    blocks = tl.cdiv(call.sizes.keys if call.cu_seqlens is None else call.sizes.queries, form.block_n)
    place = place_of(tl.program_id(0) // blocks, call)
    keys = tl.program_id(0) % blocks * form.block_n + tl.arange(0, form.block_n)
    seen = keys < place.seen_keys
    lk = gate_logit_sigmoid(call.key, call.context_key, keys, seen, call.gate.key, place, call, form)
    store_rows(key_gate, place, keys, keys < place.keys, lk)


@triton.jit
def gate_sums_kernel(call, x, context, logit, sums, KEYS: tl.constexpr, ROWS: tl.constexpr, form: tl.constexpr):
    """Sums of t x, t c and t over ROWS rows of one sequence and head, for one side of the gate, eq. 14.

    x, context: query and context_query, or with KEYS key and context_key. logit: tq or tk. sums: (programs,
    2 block_d + 1) float32, each row written by one program. Keys that a column gate may not see are not read.
    """
    longest = call.sizes.keys if KEYS and call.cu_seqlens is None else call.sizes.queries
    chunks = tl.cdiv(longest, ROWS)
    place = place_of(tl.program_id(0) // chunks, call)
    chunk = tl.program_id(0) % chunks
    stop = place.keys if KEYS else place.queries
    readable = place.seen_keys if form.column_gate and KEYS else stop
    features = tl.arange(0, form.block_d)
    of_x = tl.full((form.block_d,), 0.0, tl.float32)
    of_context = tl.full((form.block_d,), 0.0, tl.float32)
    of_bias = tl.full((form.block_m,), 0.0, tl.float32)
    for first in range(chunk * ROWS, tl.minimum((chunk + 1) * ROWS, stop), form.block_m):
        rows = first + tl.arange(0, form.block_m)
        t = load_rows(logit, place, rows, rows < stop)
        of_x += tl.sum(t[:, None] * load_tile(x, place, rows, rows < readable, call, form).to(tl.float32), 0)
        of_context += tl.sum(
            t[:, None] * load_tile(context, place, rows, rows < readable, call, form).to(tl.float32), 0
        )
        of_bias += t
    target = sums + tl.program_id(0).to(tl.int64) * (2 * form.block_d + 1)
    tl.store(target + features, of_x)
    tl.store(target + form.block_d + features, of_context)
    tl.store(target + 2 * form.block_d, tl.sum(of_bias, 0))

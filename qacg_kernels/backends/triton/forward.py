"""The forward kernel: each program computes one block of queries of one head, over all keys that they see.

`call`, `place` and `config` are a Call, a Place and a KernelConfig of `arguments`. Equation numbers refer to
qacg_kernels/MATH.md.
"""

import triton
import triton.language as tl

from qacg_kernels.backends.triton.arguments import Place
from qacg_kernels.backends.triton.gates import row_gate
from qacg_kernels.backends.triton.tiles import (
    MINUS_INFINITY,
    add_product_over_rows,
    dropout_keeps,
    hide_bytes,
    key_summands,
    load_quasi_bias,
    load_rows,
    masked_keys,
    operand,
    operand_at,
    place_of,
    product_over_features,
    score_arguments,
    sigmoid,
    store_rows,
    store_tile,
    tile_pointers,
)


@triton.jit
def forward_kernel(
    call, out, softmax_out, quasi_out, row_max_out, row_sum_out, query_gate, key_gate, config: tl.constexpr
):
    """Computes eq. 1 to 8 for config.block_m queries of one head.

    Outputs are Strided, or None if not requested; softmax_out and quasi_out must be None with config.whole_row. With a
    row gate, the kernel writes query_gate and key_gate; with a column gate, it writes query_gate and reads key_gate.
    """
    blocks = tl.cdiv(call.sizes.queries, config.block_m)
    place = place_of(tl.program_id(0) // blocks, call)
    # Programs of a head start with its last block: in a causal call it sees the most keys, so it takes longest.
    block = blocks - 1 - tl.program_id(0) % blocks
    if block * config.block_m >= place.queries:
        return

    rows = block * config.block_m + tl.arange(0, config.block_m)
    present = rows < place.queries
    q = operand(call.query, place, block * config.block_m, rows, place.queries, call, config)
    cq = operand(call.context_query, place, block * config.block_m, rows, place.queries, call, config)
    lam = row_gate(rows, present, query_gate, key_gate, place, call, config)
    quasi_bias = load_quasi_bias(rows, present, place, call)
    if config.whole_row:
        if config.key_mask:
            _, stop = masked_keys(place, call, config, config.block_n)
            place = Place(place.sequence, place.head, place.first, place.queries, place.keys, stop)
        # If lengths vary, a short sequence uses a tile of half or a quarter of the width.
        if (not config.even_keys) and config.block_n >= 64 and place.seen_keys <= config.block_n // 4:
            o, row_max, row_sum = _whole_row(
                q, cq, lam, quasi_bias, rows, key_gate, place, call, config, config.block_n // 4
            )
        elif (not config.even_keys) and config.block_n >= 64 and place.seen_keys <= config.block_n // 2:
            o, row_max, row_sum = _whole_row(
                q, cq, lam, quasi_bias, rows, key_gate, place, call, config, config.block_n // 2
            )
        else:
            o, row_max, row_sum = _whole_row(
                q, cq, lam, quasi_bias, rows, key_gate, place, call, config, config.block_n
            )
    else:
        PLAIN: tl.constexpr = config.column_gate and quasi_out is not None
        o1, o2, plain_o2, row_max, row_sum = _tiled(
            q, cq, lam, quasi_bias, block, rows, key_gate, place, call, config, PLAIN
        )
        if softmax_out is not None:
            store_tile(softmax_out, place, rows, present, o1, call, config)
        if quasi_out is not None:
            store_tile(quasi_out, place, rows, present, plain_o2 if config.column_gate else o2, call, config)
        o = o1 + o2 if config.column_gate else o1 + lam[:, None] * o2
    store_tile(out, place, rows, present, o, call, config)
    store_rows(row_max_out, place, rows, present, row_max)
    store_rows(row_sum_out, place, rows, present, row_sum)


@triton.jit
def _whole_row(q, cq, lam, quasi_bias, rows, key_gate, place, call, config: tl.constexpr, BLOCK_N: tl.constexpr):
    """Computes rows whose keys fit into one tile, with one product A V instead of one per branch.

    Returns A V, (rows, block_d), and the maximum and the sum of exponentials of each row, (rows).
    """
    CHECKED: tl.constexpr = (not config.even_keys) or config.is_causal or (call.mask is not None)
    keys = tl.arange(0, BLOCK_N)
    here = keys < place.seen_keys
    k = operand(call.key, place, 0, keys, place.seen_keys, call, config, not config.even_keys)
    ck = operand(call.context_key, place, 0, keys, place.seen_keys, call, config, not config.even_keys)
    v = operand(call.value, place, 0, keys, place.seen_keys, call, config, not config.even_keys)
    summands = key_summands(keys, place, call, config)
    if config.key_mask:
        summands = hide_bytes(summands, 1, call)
    scores, context_scores, factor, context_factor, visible = score_arguments(
        product_over_features(q, k, place, call, config),
        product_over_features(cq, ck, place, call, config),
        rows[:, None],
        keys[None, :],
        summands[None, :],
        quasi_bias[:, None],
        place,
        call,
        config,
        CHECKED,
    )
    row_max = tl.max(scores, 1) * factor
    if CHECKED:
        row_max = tl.where(row_max == MINUS_INFINITY, 0.0, row_max)  # -inf minus -inf would be NaN
    p = tl.exp2(scores * factor - row_max[:, None])
    row_sum = tl.sum(p, 1)
    g = sigmoid(context_scores, context_factor, config.fast_sigmoid)
    if CHECKED:
        g = tl.where(visible, g, 0.0)
    weight = call.factors.quasi * lam[:, None]
    if config.column_gate:
        lk = load_rows(key_gate, place, keys, here)
        weight -= call.factors.quasi * call.gate.gamma * lk[None, :]
    a = p * (1.0 / tl.where(row_sum == 0.0, 1.0, row_sum))[:, None] + weight * g
    if call.seed is not None:
        a = tl.where(dropout_keeps(call, place, rows, 0, BLOCK_N, False), a, 0.0)
    o = tl.full((rows.shape[0], config.block_d), 0.0, tl.float32)
    return call.factors.keep * add_product_over_rows(o, a, v, place, call, config), row_max, row_sum


@triton.jit
def _tiled(q, cq, lam, quasi_bias, block, rows, key_gate, place, call, config: tl.constexpr, PLAIN: tl.constexpr):
    """Computes rows over several blocks of keys, with an online softmax.

    Returns three (rows, block_d) tiles, and the maximum and the sum of exponentials of each row, (rows). The tiles are
    - for a column gate: O1, (Z o lambda o G) V, and O2 if PLAIN is true, otherwise a placeholder;
    - for other gates: O1, O2, and a placeholder.
    """
    o1 = tl.full((config.block_m, config.block_d), 0.0, tl.float32)
    o2 = tl.full((config.block_m, config.block_d), 0.0, tl.float32)
    plain_o2 = tl.full((config.block_m, config.block_d if PLAIN else 1), 0.0, tl.float32)
    row_max = tl.full((config.block_m,), MINUS_INFINITY, tl.float32)
    row_sum = tl.full((config.block_m,), 0.0, tl.float32)
    # Every query of the block sees all keys below `open_keys`, so full blocks below it need no visibility check.
    open_keys, stop = masked_keys(place, call, config)
    if config.is_causal:
        stop = tl.minimum(stop, (block + 1) * config.block_m)
        open_keys = tl.minimum(open_keys, block * config.block_m + 1)
    FULL_MASK: tl.constexpr = (call.mask is not None) and (not config.key_mask)
    if FULL_MASK:
        open_keys *= 0
    open_keys = open_keys // config.block_n * config.block_n
    if not FULL_MASK:
        o1, o2, plain_o2, row_max, row_sum = _sweep(
            o1, o2, plain_o2, row_max, row_sum, open_keys * 0, open_keys, q, cq, lam, quasi_bias, rows,
            key_gate, place, call, config, False, PLAIN,
        )  # fmt: skip
    if FULL_MASK or (not config.even_keys) or config.is_causal:
        o1, o2, plain_o2, row_max, row_sum = _sweep(
            o1, o2, plain_o2, row_max, row_sum, open_keys, stop, q, cq, lam, quasi_bias, rows,
            key_gate, place, call, config, True, PLAIN,
        )  # fmt: skip
    row_max = tl.where(row_max == MINUS_INFINITY, 0.0, row_max)
    o1 *= (call.factors.keep * (1.0 / tl.where(row_sum == 0.0, 1.0, row_sum)))[:, None]
    quasi = call.factors.keep * call.factors.quasi
    return o1, o2 * quasi, plain_o2 * quasi, row_max, row_sum


@triton.jit
def _sweep(
    o1, o2, plain_o2, row_max, row_sum, start, stop, q, cq, lam, quasi_bias, rows, key_gate, place, call,
    config: tl.constexpr, CHECKED: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Returns the five accumulators (the first five parameters) plus the contributions of keys start to stop - 1.

    o1 is scaled by exp2(-row_max), so it is rescaled when row_max rises; o2 does not depend on row_max.
    """
    block = tl.arange(0, config.block_n)
    k_pointers = tile_pointers(call.key, place, start + block, config)
    ck_pointers = tile_pointers(call.context_key, place, start + block, config)
    v_pointers = tile_pointers(call.value, place, start + block, config)
    step = tl.full((), config.block_n, tl.int64)
    summands = block
    if CHECKED:
        summands = key_summands(start + block, place, call, config)
    for first_key in range(start, stop, config.block_n):
        keys = first_key + block
        next_summands = summands
        if CHECKED:
            next_summands = key_summands(keys + config.block_n, place, call, config)  # loaded one tile ahead
        here = keys < place.seen_keys
        k = operand_at(k_pointers, call.key, first_key, keys, place.seen_keys, call, config, CHECKED)
        ck = operand_at(ck_pointers, call.context_key, first_key, keys, place.seen_keys, call, config, CHECKED)
        scores, context_scores, factor, context_factor, visible = score_arguments(
            product_over_features(q, k, place, call, config),
            product_over_features(cq, ck, place, call, config),
            rows[:, None],
            keys[None, :],
            summands[None, :],
            quasi_bias[:, None],
            place,
            call,
            config,
            CHECKED,
        )
        new_max = tl.maximum(row_max, tl.max(scores, 1) * factor)
        shift = new_max
        if CHECKED:
            shift = tl.where(new_max == MINUS_INFINITY, 0.0, new_max)  # -inf minus -inf would be NaN
        p = tl.exp2(scores * factor - shift[:, None])
        rescale = tl.exp2(row_max - shift)
        row_max = new_max
        row_sum = row_sum * rescale + tl.sum(p, 1)
        if call.seed is not None:
            keep = dropout_keeps(call, place, rows, first_key, config.block_n, False)
            p = tl.where(keep, p, 0.0)
        v = operand_at(v_pointers, call.value, first_key, keys, place.seen_keys, call, config, CHECKED)
        # Issued here, so that this product overlaps with the sigmoid.
        o1 = add_product_over_rows(o1 * rescale[:, None], p, v, place, call, config)
        g = sigmoid(context_scores, context_factor, config.fast_sigmoid)
        if CHECKED:
            g = tl.where(visible, g, 0.0)
        if call.seed is not None:
            g = tl.where(keep, g, 0.0)
        if PLAIN:
            plain_o2 = add_product_over_rows(plain_o2, g, v, place, call, config)
        if config.column_gate:
            lk = load_rows(key_gate, place, keys, here)
            g *= lam[:, None] - call.gate.gamma * lk[None, :]
        o2 = add_product_over_rows(o2, g, v, place, call, config)
        k_pointers += step * call.key.row
        ck_pointers += step * call.context_key.row
        v_pointers += step * call.value.row
        summands = next_summands
    return o1, o2, plain_o2, row_max, row_sum

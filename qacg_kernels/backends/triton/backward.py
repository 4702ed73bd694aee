"""The backward kernels.

Each program computes the gradients of one block of keys or of queries, or delta, shift and weight (`Gradients`) of one
block of query rows.

For single-tile rows, `key_blocks_kernel` computes all gradients except those of the gate's parameters, which the
kernels in `gates` compute. For tiled rows, `row_terms_kernel` runs first (eq. 10 and 13). Then `key_blocks_kernel` and
`query_blocks_kernel` compute the gradients of keys and of queries. They use no atomics, and together 11 matrix products
per tile of attention entries.

`call`, `saved`, `grads`, `place` and `config` are a Call, Saved, Gradients, a Place and a KernelConfig of `arguments`.
Equation numbers refer to qacg_kernels/MATH.md.
"""

import triton
import triton.language as tl

from qacg_kernels.backends.triton.tiles import (
    INFINITY,
    MINUS_INFINITY,
    add_product_over_rows,
    dropout_keeps,
    gate_vector,
    hide_bytes,
    key_summands,
    load_quasi_bias,
    load_rows,
    load_tile,
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
def key_blocks_kernel(call, saved, grads, config: tl.constexpr):
    """Stores dK, dKc and dV of config.block_n keys of one head; with config.whole_row also dQ and dQc.

    For a column gate, it also stores tk. With config.whole_row, it also stores the results of `store_gate_terms`. Tiles
    are (keys, queries), so that A, dT and dTc can stay in registers as operands of the products over queries.
    """
    blocks = tl.cdiv(call.sizes.keys if call.cu_seqlens is None else call.sizes.queries, config.block_n)
    place = place_of(tl.program_id(0) // blocks, call)
    block = tl.program_id(0) % blocks
    if block * config.block_n >= place.keys:
        return
    if config.whole_row and (not config.even_keys) and config.block_n >= 64 and place.keys <= config.block_n // 4:
        _key_block(block, call, saved, grads, place, config, config.block_n // 4)
    elif config.whole_row and (not config.even_keys) and config.block_n >= 64 and place.keys <= config.block_n // 2:
        _key_block(block, call, saved, grads, place, config, config.block_n // 2)
    else:
        _key_block(block, call, saved, grads, place, config, config.block_n)


@triton.jit
def _key_block(block, call, saved, grads, place, config: tl.constexpr, BLOCK_N: tl.constexpr):
    first_key = block * BLOCK_N
    keys = first_key + tl.arange(0, BLOCK_N)
    k = operand(call.key, place, first_key, keys, place.seen_keys, call, config)
    ck = operand(call.context_key, place, first_key, keys, place.seen_keys, call, config)
    v = operand(call.value, place, first_key, keys, place.seen_keys, call, config)
    dk = tl.full((BLOCK_N, config.block_d), 0.0, tl.float32)
    dck = tl.full((BLOCK_N, config.block_d), 0.0, tl.float32)
    dv = tl.full((BLOCK_N, config.block_d), 0.0, tl.float32)
    key_logit = tl.full((BLOCK_N,), 0.0, tl.float32)

    # All queries from `open_queries` on see every key of the block, so they need no visibility check.
    start = place.queries * 0
    open_queries = start
    if config.is_causal:
        start += first_key // config.block_m * config.block_m
        open_queries += tl.cdiv(first_key + BLOCK_N - 1, config.block_m) * config.block_m
    stop = place.queries
    if not config.whole_row:  # with whole_row this kernel also writes dQ, even where it is 0
        stop = tl.where(first_key < place.seen_keys, stop, 0)
    FULL_MASK: tl.constexpr = (call.mask is not None) and (not config.key_mask)
    summands = key_summands(keys, place, call, config)
    if FULL_MASK:
        open_queries = stop
    elif config.key_mask:
        summands = hide_bytes(summands, 1, call)
        if not config.whole_row:
            stop = tl.where(tl.max(summands, 0) > MINUS_INFINITY, stop, 0)
        open_queries = tl.where(tl.max(tl.where(summands == 0.0, 0, 1), 0) == 0, open_queries, stop)
    elif not config.even_keys:
        open_queries = tl.where(first_key + BLOCK_N <= place.seen_keys, open_queries, stop)
    open_queries = tl.minimum(open_queries, stop)
    if FULL_MASK or (not config.even_keys) or config.is_causal:
        dk, dck, dv, key_logit = _add_queries(
            dk,
            dck,
            dv,
            key_logit,
            start,
            open_queries,
            k,
            ck,
            v,
            first_key,
            summands,
            call,
            saved,
            grads,
            place,
            config,
            True,
        )
    if not FULL_MASK:
        dk, dck, dv, key_logit = _add_queries(
            dk,
            dck,
            dv,
            key_logit,
            open_queries,
            stop,
            k,
            ck,
            v,
            first_key,
            summands,
            call,
            saved,
            grads,
            place,
            config,
            False,
        )

    inside = keys < place.keys
    dk *= call.factors.scale
    dck *= call.factors.scale
    if call.gate_lambda is None:
        if config.column_gate:
            lk = load_rows(saved.key_gate, place, keys, inside)
            key_logit = _key_gate_term(key_logit, lk, keys, inside, saved, place)
            store_rows(grads.key_logit, place, keys, inside, key_logit)
        elif not config.whole_row:
            key_logit = load_rows(grads.key_logit, place, keys, inside)
        dk += key_logit[:, None] * gate_vector(call.gate.key.vector, place, call, config)[None, :]
        dck += key_logit[:, None] * gate_vector(call.gate.key.context_vector, place, call, config)[None, :]
    store_tile(grads.key, place, keys, inside, dk, call, config)
    store_tile(grads.context_key, place, keys, inside, dck, call, config)
    store_tile(grads.value, place, keys, inside, dv, call, config)


@triton.jit
def _add_queries(
    dk, dck, dv, key_logit, start, stop, k, ck, v, first_key, summands, call, saved, grads, place, config: tl.constexpr,
    CHECKED: tl.constexpr,
):  # fmt: skip
    """Returns dk, dck, dv and key_logit plus the contributions of queries start to stop - 1, eq. 9 to 13.

    For a column gate, key_logit accumulates dlk. For a row gate, it accumulates tk (of the key at the query's position)
    if the rows are single-tile rows, and otherwise stays unchanged. For single-tile rows, the function also stores dQ
    and dQc of these queries, and the results of `store_gate_terms`.
    """
    BLOCK_N: tl.constexpr = dk.shape[0]
    keys = first_key + tl.arange(0, BLOCK_N)
    for first_row in range(start, stop, config.block_m):
        rows = first_row + tl.arange(0, config.block_m)
        present = rows < place.queries
        q = operand(call.query, place, first_row, rows, place.queries, call, config)
        cq = operand(call.context_query, place, first_row, rows, place.queries, call, config)
        scores, context_scores, factor, context_factor, visible = score_arguments(
            product_over_features(k, q, place, call, config),
            product_over_features(ck, cq, place, call, config),
            rows[None, :],
            keys[:, None],
            summands[:, None],
            load_quasi_bias(rows, present, place, call)[None, :],
            place,
            call,
            config,
            CHECKED,
        )
        shift, row_weight, lq, lk_of_row = _row_factors(rows, present, call, saved, grads, place, config)
        if CHECKED and config.key_mask:
            shift = tl.where(present, shift, INFINITY)  # else exp2 of a large mask value could overflow
        p = tl.exp2(scores * factor - shift[None, :])
        if not config.fast_sigmoid:
            if _normalises_again(config):
                # Rounding the shift of large scores makes p sum to 1 + e instead of 1, and delta (eq. 10) carries e
                # into dT. So p is normalised again, but not for 16-bit inputs, where the rounding of dT exceeds e.
                row_total = tl.sum(p, 0)
                p *= (1.0 / tl.where(row_total == 0.0, 1.0, row_total))[None, :]
            else:
                p *= _inverse_sum(rows, present, saved, place)[None, :]
        g = sigmoid(context_scores, context_factor, config.fast_sigmoid)
        if CHECKED:
            g = tl.where(visible, g, 0.0)
        weight = row_weight[None, :]
        if config.column_gate:
            lk = load_rows(saved.key_gate, place, keys, keys < place.seen_keys)
            weight -= call.factors.quasi * call.gate.gamma * lk[:, None]
        weighted = weight * g
        do = operand(saved.grad_out, place, first_row, rows, place.queries, call, config)
        da = product_over_features(v, do, place, call, config)
        a = p + weighted
        if call.seed is not None:
            keep = dropout_keeps(call, place, rows, first_key, BLOCK_N, True)
            a = tl.where(keep, call.factors.keep * a, 0.0)
            da = tl.where(keep, call.factors.keep * da, 0.0)
        dv = add_product_over_rows(dv, a, do, place, call, config)
        if config.whole_row:
            delta = tl.sum(da * p, 0)
            gate_term = call.factors.quasi * tl.sum(da * g, 0)
            query_logit, own_key_logit = store_gate_terms(
                gate_term, lq, lk_of_row, rows, present, call, saved, grads, place, config
            )
            if (call.gate_lambda is None) and (not config.column_gate):
                # The row gate reads the key at the query's position, which is on the diagonal of the tile.
                key_logit += tl.sum(tl.where(rows[None, :] == keys[:, None], own_key_logit[None, :], 0.0), 1)
        else:
            delta = load_rows(grads.delta, place, rows, present)
        if config.column_gate:
            key_logit -= call.gate.gamma * call.factors.quasi * tl.sum(da * g, 1)
        ds = (p * (da - delta[None, :])).to(call.key.data.dtype.element_ty)
        du = (weighted * (da - da * g)).to(call.key.data.dtype.element_ty)
        dk = add_product_over_rows(dk, ds, q, place, call, config)
        dck = add_product_over_rows(dck, du, cq, place, call, config)
        if config.whole_row:
            nothing = tl.full((config.block_m, config.block_d), 0.0, tl.float32)
            dq = call.factors.scale * add_product_over_rows(nothing, tl.trans(ds), k, place, call, config)
            dcq = call.factors.scale * add_product_over_rows(nothing, tl.trans(du), ck, place, call, config)
            if call.gate_lambda is None:
                dq += query_logit[:, None] * gate_vector(call.gate.query.vector, place, call, config)[None, :]
                dcq += query_logit[:, None] * gate_vector(call.gate.query.context_vector, place, call, config)[None, :]
            store_tile(grads.query, place, rows, present, dq, call, config)
            store_tile(grads.context_query, place, rows, present, dcq, call, config)
    return dk, dck, dv, key_logit


@triton.jit
def query_blocks_kernel(call, saved, grads, config: tl.constexpr):
    """Stores dQ and dQc of config.block_m queries of one head; for a column gate also tq."""
    blocks = tl.cdiv(call.sizes.queries, config.block_m)
    place = place_of(tl.program_id(0) // blocks, call)
    block = blocks - 1 - tl.program_id(0) % blocks
    if block * config.block_m >= place.queries:
        return
    rows = block * config.block_m + tl.arange(0, config.block_m)
    present = rows < place.queries
    first_row = block * config.block_m
    q = operand(call.query, place, first_row, rows, place.queries, call, config)
    cq = operand(call.context_query, place, first_row, rows, place.queries, call, config)
    do = operand(saved.grad_out, place, first_row, rows, place.queries, call, config)
    shift, row_weight, _, _ = _row_factors(rows, present, call, saved, grads, place, config)
    delta = load_rows(grads.delta, place, rows, present)
    quasi_bias = load_quasi_bias(rows, present, place, call)
    dq = tl.full((config.block_m, config.block_d), 0.0, tl.float32)
    dcq = tl.full((config.block_m, config.block_d), 0.0, tl.float32)
    gate_term = tl.full((config.block_m,), 0.0, tl.float32)

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
        dq, dcq, gate_term = _add_keys(
            dq, dcq, gate_term, open_keys * 0, open_keys, q, cq, do, delta, shift, row_weight, quasi_bias, rows,
            call, saved, place, config, False,
        )  # fmt: skip
    if FULL_MASK or (not config.even_keys) or config.is_causal:
        dq, dcq, gate_term = _add_keys(
            dq, dcq, gate_term, open_keys, stop, q, cq, do, delta, shift, row_weight, quasi_bias, rows, call,
            saved, place, config, True,
        )  # fmt: skip

    dq *= call.factors.scale
    dcq *= call.factors.scale
    if call.gate_lambda is None:
        if config.column_gate:
            lq = load_rows(saved.query_gate, place, rows, present)
            query_logit, _ = store_gate_terms(
                call.factors.quasi * gate_term, lq, lq, rows, present, call, saved, grads, place, config
            )
        else:
            query_logit = load_rows(grads.query_logit, place, rows, present)
        dq += query_logit[:, None] * gate_vector(call.gate.query.vector, place, call, config)[None, :]
        dcq += query_logit[:, None] * gate_vector(call.gate.query.context_vector, place, call, config)[None, :]
    store_tile(grads.query, place, rows, present, dq, call, config)
    store_tile(grads.context_query, place, rows, present, dcq, call, config)


@triton.jit
def _add_keys(
    dq, dcq, gate_term, start, stop, q, cq, do, delta, shift, row_weight, quasi_bias, rows, call, saved, place,
    config: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """Returns dq, dcq and gate_term plus the contributions of keys start to stop - 1, eq. 9 to 13."""
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
        v = operand_at(v_pointers, call.value, first_key, keys, place.seen_keys, call, config, CHECKED)
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
        p = tl.exp2(scores * factor - shift[:, None])
        if not config.fast_sigmoid:
            p *= _inverse_sum(rows, rows < place.queries, saved, place)[:, None]
        g = sigmoid(context_scores, context_factor, config.fast_sigmoid)
        if CHECKED:
            g = tl.where(visible, g, 0.0)
        da = product_over_features(do, v, place, call, config)
        if call.seed is not None:
            keep = dropout_keeps(call, place, rows, first_key, config.block_n, False)
            da = tl.where(keep, call.factors.keep * da, 0.0)
        weight = row_weight[:, None]
        if config.column_gate:
            lk = load_rows(saved.key_gate, place, keys, here)
            weight -= call.factors.quasi * call.gate.gamma * lk[None, :]
            gate_term += tl.sum(da * g, 1)
        dq = add_product_over_rows(dq, p * (da - delta[:, None]), k, place, call, config)
        dcq = add_product_over_rows(dcq, weight * g * (da - da * g), ck, place, call, config)
        k_pointers += step * call.key.row
        ck_pointers += step * call.context_key.row
        v_pointers += step * call.value.row
        summands = next_summands
    return dq, dcq, gate_term


@triton.jit
def row_terms_kernel(call, saved, grads, config: tl.constexpr):
    """Stores delta (eq. 10), shift and weight of `Gradients` for config.block_m query rows.

    It computes delta from the saved O1. Without a column gate, it also stores the gradients of the lambda tensor or of
    the gate logits (eq. 13 and 14), from the saved O2.
    """
    blocks = tl.cdiv(call.sizes.queries, config.block_m)
    place = place_of(tl.program_id(0) // blocks, call)
    block = tl.program_id(0) % blocks
    if block * config.block_m >= place.queries:
        return
    rows = block * config.block_m + tl.arange(0, config.block_m)
    present = rows < place.queries
    do = load_tile(saved.grad_out, place, rows, present, call, config).to(tl.float32)
    o1 = load_tile(saved.softmax_out, place, rows, present, call, config).to(tl.float32)
    store_rows(grads.delta, place, rows, present, tl.sum(do * o1, 1))
    shift, weight, lq, lk = _new_row_factors(rows, present, call, saved, place, config)
    store_rows(grads.shift, place, rows, present, shift)
    store_rows(grads.weight, place, rows, present, weight)
    if not config.column_gate:
        o2 = load_tile(saved.quasi_out, place, rows, present, call, config).to(tl.float32)
        store_gate_terms(tl.sum(do * o2, 1), lq, lk, rows, present, call, saved, grads, place, config)


@triton.jit
def _row_factors(rows, present, call, saved, grads, place, config: tl.constexpr):
    """Returns `shift` and `weight` of `Gradients`, lq and lk, (rows) each.

    P is exp2(scores - shift), in float32 normalised afterwards (`_add_queries`, `_add_keys`). A row without visible
    keys has a stored maximum and sum of 0, and its P is 0. For tiled rows, lq and lk are placeholders, because
    `key_blocks_kernel` and `query_blocks_kernel` do not use them.
    """
    if grads.shift is not None:
        shift = load_rows(grads.shift, place, rows, present)
        weight = load_rows(grads.weight, place, rows, present)
        lq, lk = weight, weight
    else:
        shift, weight, lq, lk = _new_row_factors(rows, present, call, saved, place, config)
    return shift, weight, lq, lk


@triton.jit
def _new_row_factors(rows, present, call, saved, place, config: tl.constexpr):
    shift = load_rows(saved.row_max, place, rows, present)
    if config.fast_sigmoid or _normalises_again(config):
        row_sum = load_rows(saved.row_sum, place, rows, present)
        shift += tl.log2(tl.where(row_sum == 0.0, 1.0, row_sum))
    lam, lq, lk = _row_gate(rows, present, call, saved, place, config)
    return shift, call.factors.quasi * lam, lq, lk


@triton.constexpr_function
def _normalises_again(config):
    """Whether, for 32-bit inputs, the kernel divides P by its sum over the tile, and not by the saved sum of the row.

    Holds for single-tile rows of at most 128 features, because with the saved sum some of their kernels would spill.
    """
    return config.whole_row and config.block_d <= 128


@triton.jit
def _inverse_sum(rows, present, saved, place):
    """Returns 1 / the sum of exponentials of each row, (rows).

    In float32, the shift does not include the logarithm of this sum: added to the row's maximum, it would be rounded to
    the maximum's precision, and this rounding would be the largest error of P. `_normalises_again` has the exception.
    """
    row_sum = load_rows(saved.row_sum, place, rows, present)
    return 1.0 / tl.where(row_sum == 0.0, 1.0, row_sum)


@triton.jit
def _row_gate(rows, present, call, saved, place, config: tl.constexpr):
    """Returns lambda, lq and lk of each row, (rows) each, from the saved gates or the lambda tensor.

    For a column gate, the results are 1 - beta lq, lq, and a placeholder. If the call has a lambda tensor, lq and lk
    are placeholders.
    """
    if call.gate_lambda is not None:
        lam = load_rows(call.gate_lambda, place, rows, present)
        lq, lk = lam, lam
    else:
        lq = load_rows(saved.query_gate, place, rows, present)
        lk = lq
        lam = 1.0 - call.gate.beta * lq
        if not config.column_gate:
            lk = load_rows(saved.key_gate, place, rows, present)
            lam -= call.gate.gamma * lk
    return lam, lq, lk


@triton.jit
def store_gate_terms(gate_term, lq, lk, rows, present, call, saved, grads, place, config: tl.constexpr):
    """Stores the gate gradients of each row: tq and, for a row gate, tk (eq. 14); or the gradient of the lambda tensor.

    `gate_term` is sum_j dlambda_ij (eq. 13), (rows). Returns tq and tk. For a column gate, tk is a placeholder. If the
    call has a lambda tensor, both are placeholders.
    """
    query_logit = gate_term
    key_logit = gate_term
    if call.gate_lambda is not None:
        store_rows(grads.gate_lambda, place, rows, present, gate_term)
    else:
        d_query_gate = -call.gate.beta * gate_term
        if saved.grad_query_gate is not None:
            d_query_gate += load_rows(saved.grad_query_gate, place, rows, present)
        query_logit = d_query_gate * lq * (1.0 - lq)
        store_rows(grads.query_logit, place, rows, present, query_logit)
        if not config.column_gate:
            key_logit = _key_gate_term(-call.gate.gamma * gate_term, lk, rows, present, saved, place)
            store_rows(grads.key_logit, place, rows, present, key_logit)
    return query_logit, key_logit


@triton.jit
def _key_gate_term(d_key_gate, lk, rows, present, saved, place):
    """Returns tk (eq. 14), one value per row.

    `d_key_gate` is the part of dlk that comes from lambda. This function adds the upstream gradient of lk, if any.
    """
    if saved.grad_key_gate is not None:
        d_key_gate += load_rows(saved.grad_key_gate, place, rows, present)
    return d_key_gate * lk * (1.0 - lk)

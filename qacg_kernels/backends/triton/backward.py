"""The backward kernels: over blocks of keys, over blocks of queries, and over rows alone.

Where all keys of a row are one block, the kernel over key blocks does everything. Else the rows' terms come first
(eq. 10 and 13), then each kernel takes the products whose sums it owns: no atomics, 11 products. With atomic
additions to dQ and dQc the kernel over key blocks runs the 8 products alone.
"""

import triton
import triton.language as tl

from qacg_kernels.backends.triton.tiles import (
    add_product_over_rows,
    gate_vector,
    keep_cells,
    load_rows,
    load_tile,
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
def key_blocks_kernel(call, saved, grads, form: tl.constexpr):
    """dK, dKc and dV of form.block_n keys of one head; dQ and dQc too where `grads` has a place for them.

    Tiles are (keys, queries), so that A, dT and dTc go from registers into the products that sum over queries.
    """
    blocks = tl.cdiv(call.sizes.keys if call.cu_seqlens is None else call.sizes.queries, form.block_n)
    place = place_of(tl.program_id(0) // blocks, call)
    block = tl.program_id(0) % blocks
    if block * form.block_n >= place.keys:
        return
    if form.whole_row and (not form.even_keys) and form.block_n >= 64 and place.keys <= form.block_n // 4:
        _key_block(block, call, saved, grads, place, form, form.block_n // 4)
    elif form.whole_row and (not form.even_keys) and form.block_n >= 64 and place.keys <= form.block_n // 2:
        _key_block(block, call, saved, grads, place, form, form.block_n // 2)
    else:
        _key_block(block, call, saved, grads, place, form, form.block_n)


@triton.jit
def _key_block(block, call, saved, grads, place, form: tl.constexpr, BLOCK_N: tl.constexpr):
    first_key = block * BLOCK_N
    keys = first_key + tl.arange(0, BLOCK_N)
    k = operand(call.key, place, first_key, keys, place.seen_keys, call, form)
    ck = operand(call.context_key, place, first_key, keys, place.seen_keys, call, form)
    v = operand(call.value, place, first_key, keys, place.seen_keys, call, form)
    dk = tl.full((BLOCK_N, form.block_d), 0.0, tl.float32)
    dck = tl.full((BLOCK_N, form.block_d), 0.0, tl.float32)
    dv = tl.full((BLOCK_N, form.block_d), 0.0, tl.float32)
    key_logit = tl.full((BLOCK_N,), 0.0, tl.float32)

    # Queries from `open_queries` on see every key of the block.
    start = place.queries * 0
    open_queries = start
    if form.is_causal:
        start += first_key // form.block_m * form.block_m
        open_queries += tl.cdiv(first_key + BLOCK_N - 1, form.block_m) * form.block_m
    stop = place.queries
    if not form.whole_row:  # whole rows get their dQ here, be it 0
        stop = tl.where(first_key < place.seen_keys, stop, 0)
    if call.mask is not None:
        open_queries = stop
    elif not form.even_keys:
        open_queries = tl.where(first_key + BLOCK_N <= place.seen_keys, open_queries, stop)
    open_queries = tl.minimum(open_queries, stop)
    if (call.mask is not None) or (not form.even_keys) or form.is_causal:
        dk, dck, dv, key_logit = _add_queries(
            dk, dck, dv, key_logit, start, open_queries, k, ck, v, first_key, call, saved, grads, place, form, True
        )
    if call.mask is None:
        dk, dck, dv, key_logit = _add_queries(
            dk, dck, dv, key_logit, open_queries, stop, k, ck, v, first_key, call, saved, grads, place, form, False
        )

    inside = keys < place.keys
    dk *= call.factors.scale
    dck *= call.factors.scale
    if call.gate_lambda is None:
        if form.column_gate:
            key_logit = _key_gate_term(key_logit, keys, inside, call, saved, place)
            store_rows(grads.key_logit, place, keys, inside, key_logit)
        elif not form.whole_row:
            key_logit = load_rows(grads.key_logit, place, keys, inside)
        dk += key_logit[:, None] * gate_vector(call.gate.key.vector, place, call, form)[None, :]
        dck += key_logit[:, None] * gate_vector(call.gate.key.context_vector, place, call, form)[None, :]
    store_tile(grads.key, place, keys, inside, dk, call, form)
    store_tile(grads.context_key, place, keys, inside, dck, call, form)
    store_tile(grads.value, place, keys, inside, dv, call, form)


@triton.jit
def _add_queries(
    dk, dck, dv, key_logit, start, stop, k, ck, v, first_key, call, saved, grads, place, form: tl.constexpr,
    CHECKED: tl.constexpr,
):  # fmt: skip
    """Adds what the queries from start to stop give, eq. 9 to 13.

    key_logit collects dlk of a column gate, or with a row gate and whole rows tk at the keys' own positions.
    """
    BLOCK_N: tl.constexpr = dk.shape[0]
    keys = first_key + tl.arange(0, BLOCK_N)
    for first_row in range(start, stop, form.block_m):
        rows = first_row + tl.arange(0, form.block_m)
        present = rows < place.queries
        q = operand(call.query, place, first_row, rows, place.queries, call, form)
        cq = operand(call.context_query, place, first_row, rows, place.queries, call, form)
        scores, context_scores, factor, visible = score_arguments(
            product_over_features(k, q, place, call, form),
            product_over_features(ck, cq, place, call, form),
            rows[None, :],
            keys[:, None],
            place,
            call,
            form,
            CHECKED,
        )
        log_sum, row_weight = _row_factors(rows, present, call, saved, grads, place, form)
        p = tl.exp2(scores * factor - log_sum[None, :])
        if form.whole_row and (not form.fast_sigmoid) and form.block_d <= 128:
            # log_sum has lost digits of large scores, so p sums to 1 + e, and delta would carry e into dT (eq. 10). In
            # 16 bits the rounding of dT hides e. Wider heads have no registers left for it: 168 bytes of stack.
            row_total = tl.sum(p, 0)
            p *= (1.0 / tl.where(row_total == 0.0, 1.0, row_total))[None, :]
        g = sigmoid(context_scores, factor, form.fast_sigmoid)
        if CHECKED:
            g = tl.where(visible, g, 0.0)
        weight = row_weight[None, :]
        if form.column_gate:
            lk = load_rows(saved.key_gate, place, keys, keys < place.seen_keys)
            weight -= call.factors.quasi * call.gate.gamma * lk[:, None]
        weighted = weight * g
        do = operand(saved.grad_out, place, first_row, rows, place.queries, call, form)
        da = product_over_features(v, do, place, call, form)
        a = p + weighted
        if call.seed is not None:
            keep = keep_cells(call, place, rows, first_key, BLOCK_N, True)
            a = tl.where(keep, call.factors.keep * a, 0.0)
            da = tl.where(keep, call.factors.keep * da, 0.0)
        dv = add_product_over_rows(dv, a, do, place, call, form)
        if form.whole_row:
            delta = tl.sum(da * p, 0)
            gate_term = call.factors.quasi * tl.sum(da * g, 0)
            query_logit, own_key_logit = store_gate_terms(gate_term, rows, present, call, saved, grads, place, form)
            if (call.gate_lambda is None) and (not form.column_gate):
                # The row gate reads the key at the query's position: the diagonal of the tile.
                key_logit += tl.sum(tl.where(rows[None, :] == keys[:, None], own_key_logit[None, :], 0.0), 1)
        else:
            delta = load_rows(grads.delta, place, rows, present)
        if form.column_gate:
            key_logit -= call.gate.gamma * call.factors.quasi * tl.sum(da * g, 1)
        ds = (p * (da - delta[None, :])).to(call.key.data.dtype.element_ty)
        du = (weighted * (da - da * g)).to(call.key.data.dtype.element_ty)
        dk = add_product_over_rows(dk, ds, q, place, call, form)
        dck = add_product_over_rows(dck, du, cq, place, call, form)
        nothing = tl.full((form.block_m, form.block_d), 0.0, tl.float32)
        if form.whole_row:
            dq = call.factors.scale * add_product_over_rows(nothing, tl.trans(ds), k, place, call, form)
            dcq = call.factors.scale * add_product_over_rows(nothing, tl.trans(du), ck, place, call, form)
            if call.gate_lambda is None:
                dq += query_logit[:, None] * gate_vector(call.gate.query.vector, place, call, form)[None, :]
                dcq += query_logit[:, None] * gate_vector(call.gate.query.context_vector, place, call, form)[None, :]
            store_tile(grads.query, place, rows, present, dq, call, form)
            store_tile(grads.context_query, place, rows, present, dcq, call, form)
        elif grads.query is not None:
            feature = (tl.arange(0, form.block_d) < call.sizes.head_dim)[None, :] & present[:, None]
            dq = add_product_over_rows(nothing, tl.trans(ds), k, place, call, form)
            tl.atomic_add(tile_pointers(grads.query, place, rows, form), dq, mask=feature, sem="relaxed")
            dcq = add_product_over_rows(nothing, tl.trans(du), ck, place, call, form)
            tl.atomic_add(tile_pointers(grads.context_query, place, rows, form), dcq, mask=feature, sem="relaxed")
    return dk, dck, dv, key_logit


@triton.jit
def query_blocks_kernel(call, saved, grads, form: tl.constexpr, SUMS_ONLY: tl.constexpr):
    """dQ and dQc of form.block_m queries of one head; if SUMS_ONLY, instead the rows' delta and gate terms."""
    blocks = tl.cdiv(call.sizes.queries, form.block_m)
    place = place_of(tl.program_id(0) // blocks, call)
    block = blocks - 1 - tl.program_id(0) % blocks
    if block * form.block_m >= place.queries:
        return
    rows = block * form.block_m + tl.arange(0, form.block_m)
    present = rows < place.queries
    first_row = block * form.block_m
    q = operand(call.query, place, first_row, rows, place.queries, call, form)
    cq = operand(call.context_query, place, first_row, rows, place.queries, call, form)
    do = operand(saved.grad_out, place, first_row, rows, place.queries, call, form)
    delta = tl.full((form.block_m,), 0.0, tl.float32)
    if SUMS_ONLY:
        log_sum, row_weight = _store_row_factors(rows, present, call, saved, grads, place, form)
    else:
        log_sum, row_weight = _row_factors(rows, present, call, saved, grads, place, form)
        delta = load_rows(grads.delta, place, rows, present)
    dq = tl.full((form.block_m, 1 if SUMS_ONLY else form.block_d), 0.0, tl.float32)
    dcq = tl.full((form.block_m, 1 if SUMS_ONLY else form.block_d), 0.0, tl.float32)
    gate_term = tl.full((form.block_m,), 0.0, tl.float32)

    # As in the forward: blocks of keys below `open_keys` are full, and every query of the block sees them.
    stop = place.seen_keys
    open_keys = place.seen_keys
    if form.is_causal:
        stop = tl.minimum(stop, (block + 1) * form.block_m)
        open_keys = tl.minimum(open_keys, block * form.block_m + 1)
    if call.mask is not None:
        open_keys *= 0
    open_keys = open_keys // form.block_n * form.block_n
    if call.mask is None:
        dq, dcq, delta, gate_term = _add_keys(
            dq, dcq, delta, gate_term, open_keys * 0, open_keys, q, cq, do, log_sum, row_weight, rows, call, saved,
            place, form, False, SUMS_ONLY,
        )  # fmt: skip
    if (call.mask is not None) or (not form.even_keys) or form.is_causal:
        dq, dcq, delta, gate_term = _add_keys(
            dq, dcq, delta, gate_term, open_keys, stop, q, cq, do, log_sum, row_weight, rows, call, saved,
            place, form, True, SUMS_ONLY,
        )  # fmt: skip

    if SUMS_ONLY:
        store_rows(grads.delta, place, rows, present, delta)
        store_gate_terms(call.factors.quasi * gate_term, rows, present, call, saved, grads, place, form)
    else:
        dq *= call.factors.scale
        dcq *= call.factors.scale
        if call.gate_lambda is None:
            if form.column_gate:
                query_logit, _ = store_gate_terms(
                    call.factors.quasi * gate_term, rows, present, call, saved, grads, place, form
                )
            else:
                query_logit = load_rows(grads.query_logit, place, rows, present)
            dq += query_logit[:, None] * gate_vector(call.gate.query.vector, place, call, form)[None, :]
            dcq += query_logit[:, None] * gate_vector(call.gate.query.context_vector, place, call, form)[None, :]
        store_tile(grads.query, place, rows, present, dq, call, form)
        store_tile(grads.context_query, place, rows, present, dcq, call, form)


@triton.jit
def _add_keys(
    dq, dcq, delta, gate_term, start, stop, q, cq, do, log_sum, row_weight, rows, call, saved, place,
    form: tl.constexpr, CHECKED: tl.constexpr, SUMS_ONLY: tl.constexpr,
):  # fmt: skip
    """Adds what the keys from start to stop give, eq. 9 to 13."""
    block = tl.arange(0, form.block_n)
    k_pointers = tile_pointers(call.key, place, start + block, form)
    ck_pointers = tile_pointers(call.context_key, place, start + block, form)
    v_pointers = tile_pointers(call.value, place, start + block, form)
    step = tl.full((), form.block_n, tl.int64)
    for first_key in range(start, stop, form.block_n):
        keys = first_key + block
        here = keys < place.seen_keys
        k = operand_at(k_pointers, call.key, first_key, keys, place.seen_keys, call, form, CHECKED)
        ck = operand_at(ck_pointers, call.context_key, first_key, keys, place.seen_keys, call, form, CHECKED)
        v = operand_at(v_pointers, call.value, first_key, keys, place.seen_keys, call, form, CHECKED)
        scores, context_scores, factor, visible = score_arguments(
            product_over_features(q, k, place, call, form),
            product_over_features(cq, ck, place, call, form),
            rows[:, None],
            keys[None, :],
            place,
            call,
            form,
            CHECKED,
        )
        p = tl.exp2(scores * factor - log_sum[:, None])
        g = sigmoid(context_scores, factor, form.fast_sigmoid)
        if CHECKED:
            g = tl.where(visible, g, 0.0)
        da = product_over_features(do, v, place, call, form)
        if call.seed is not None:
            keep = keep_cells(call, place, rows, first_key, form.block_n, False)
            da = tl.where(keep, call.factors.keep * da, 0.0)
        if SUMS_ONLY:
            delta += tl.sum(da * p, 1)
        else:
            weight = row_weight[:, None]
            if form.column_gate:
                lk = load_rows(saved.key_gate, place, keys, here)
                weight -= call.factors.quasi * call.gate.gamma * lk[None, :]
            dq = add_product_over_rows(dq, p * (da - delta[:, None]), k, place, call, form)
            dcq = add_product_over_rows(dcq, weight * g * (da - da * g), ck, place, call, form)
        if SUMS_ONLY or form.column_gate:
            gate_term += tl.sum(da * g, 1)
        k_pointers += step * call.key.row
        ck_pointers += step * call.context_key.row
        v_pointers += step * call.value.row
    return dq, dcq, delta, gate_term


@triton.jit
def row_terms_kernel(call, saved, grads, form: tl.constexpr):
    """delta and the gate's terms of form.block_m rows from the saved branch outputs, eq. 10 and 13."""
    blocks = tl.cdiv(call.sizes.queries, form.block_m)
    place = place_of(tl.program_id(0) // blocks, call)
    block = tl.program_id(0) % blocks
    if block * form.block_m >= place.queries:
        return
    rows = block * form.block_m + tl.arange(0, form.block_m)
    present = rows < place.queries
    do = load_tile(saved.grad_out, place, rows, present, call, form).to(tl.float32)
    o1 = load_tile(saved.softmax_out, place, rows, present, call, form).to(tl.float32)
    store_rows(grads.delta, place, rows, present, tl.sum(do * o1, 1))
    _store_row_factors(rows, present, call, saved, grads, place, form)
    if not form.column_gate:
        o2 = load_tile(saved.quasi_out, place, rows, present, call, form).to(tl.float32)
        store_gate_terms(tl.sum(do * o2, 1), rows, present, call, saved, grads, place, form)


@triton.jit
def finish_queries_kernel(call, sums, grads, form: tl.constexpr):
    """dQ and dQc of form.block_m rows from their atomic sums, in float32 (`sums`), and the gate's part."""
    blocks = tl.cdiv(call.sizes.queries, form.block_m)
    place = place_of(tl.program_id(0) // blocks, call)
    block = tl.program_id(0) % blocks
    if block * form.block_m >= place.queries:
        return
    rows = block * form.block_m + tl.arange(0, form.block_m)
    present = rows < place.queries
    dq = call.factors.scale * load_tile(sums.query, place, rows, present, call, form)
    dcq = call.factors.scale * load_tile(sums.context_query, place, rows, present, call, form)
    if call.gate_lambda is None:
        query_logit = load_rows(grads.query_logit, place, rows, present)
        dq += query_logit[:, None] * gate_vector(call.gate.query.vector, place, call, form)[None, :]
        dcq += query_logit[:, None] * gate_vector(call.gate.query.context_vector, place, call, form)[None, :]
    store_tile(grads.query, place, rows, present, dq, call, form)
    store_tile(grads.context_query, place, rows, present, dcq, call, form)


@triton.jit
def _row_factors(rows, present, call, saved, grads, place, form: tl.constexpr):
    """What P and the weight of G are made with: log2 of the rows' sums, and alpha lambda, (M) each.

    P = exp2(scores - log_sum). It is 0 in a row that sees no key, whose maximum and sum are stored as 0.
    """
    if grads.log_sum is not None:
        log_sum = load_rows(grads.log_sum, place, rows, present)
        weight = load_rows(grads.weight, place, rows, present)
    else:
        log_sum, weight = _new_row_factors(rows, present, call, saved, place, form)
    return log_sum, weight


@triton.jit
def _store_row_factors(rows, present, call, saved, grads, place, form: tl.constexpr):
    log_sum, weight = _new_row_factors(rows, present, call, saved, place, form)
    store_rows(grads.log_sum, place, rows, present, log_sum)
    store_rows(grads.weight, place, rows, present, weight)
    return log_sum, weight


@triton.jit
def _new_row_factors(rows, present, call, saved, place, form: tl.constexpr):
    row_max = load_rows(saved.row_max, place, rows, present)
    row_sum = load_rows(saved.row_sum, place, rows, present)
    log_sum = row_max + tl.log2(tl.where(row_sum == 0.0, 1.0, row_sum))
    return log_sum, call.factors.quasi * _row_gate(rows, present, call, saved, place, form)


@triton.jit
def _row_gate(rows, present, call, saved, place, form: tl.constexpr):
    """lambda of each row, or of a column gate its part 1 - beta lq, from the saved gates: (M)."""
    if call.gate_lambda is not None:
        lam = load_rows(call.gate_lambda, place, rows, present)
    else:
        lam = 1.0 - call.gate.beta * load_rows(saved.query_gate, place, rows, present)
        if not form.column_gate:
            lam -= call.gate.gamma * load_rows(saved.key_gate, place, rows, present)
    return lam


@triton.jit
def store_gate_terms(gate_term, rows, present, call, saved, grads, place, form: tl.constexpr):
    """Stores what sum_j dlambda_ij (M) means for the gate, eq. 13 and 14; returns tq and the row gate's tk."""
    query_logit = gate_term
    key_logit = gate_term
    if call.gate_lambda is not None:
        store_rows(grads.gate_lambda, place, rows, present, gate_term)
    else:
        lq = load_rows(saved.query_gate, place, rows, present)
        d_query_gate = -call.gate.beta * gate_term
        if saved.grad_query_gate is not None:
            d_query_gate += load_rows(saved.grad_query_gate, place, rows, present)
        query_logit = d_query_gate * lq * (1.0 - lq)
        store_rows(grads.query_logit, place, rows, present, query_logit)
        if not form.column_gate:
            key_logit = _key_gate_term(-call.gate.gamma * gate_term, rows, present, call, saved, place)
            store_rows(grads.key_logit, place, rows, present, key_logit)
    return query_logit, key_logit


@triton.jit
def _key_gate_term(d_key_gate, rows, present, call, saved, place):
    """tk from dlk, both (rows)."""
    lk = load_rows(saved.key_gate, place, rows, present)
    if saved.grad_key_gate is not None:
        d_key_gate += load_rows(saved.grad_key_gate, place, rows, present)
    return d_key_gate * lk * (1.0 - lk)

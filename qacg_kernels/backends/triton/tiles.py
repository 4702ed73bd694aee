"""Device functions that the forward and backward kernels share: positions, loads, products, masks and dropout.

Tiles of attention entries are (queries, keys) or (keys, queries). Functions on such tiles work for both orders, because
their positions i (queries) and j (keys) are tensors that broadcast to the tile. `call`, `place` and `config` are a
Call, a Place and a KernelConfig of `arguments`. Equation numbers refer to qacg_kernels/MATH.md.
"""

import torch
import triton
import triton.language as tl

from qacg_kernels.backends.triton.arguments import Operand, Place
from qacg_kernels.call.dropout import ROUNDS
from qacg_kernels.call.problem import HIDING

PHILOX_ROUNDS = tl.constexpr(ROUNDS)
LOG2E = tl.constexpr(1.4426950408889634)
INFINITY = tl.constexpr(float("inf"))
MINUS_INFINITY = tl.constexpr(float("-inf"))
HIDING_FLOAT16 = tl.constexpr(HIDING[torch.float16])
HIDING_BFLOAT16 = tl.constexpr(HIDING[torch.bfloat16])
HIDING_FLOAT32 = tl.constexpr(HIDING[torch.float32])
# Coefficients of a polynomial of degree 5 for 1 / (1 + u) on [0, 1]: of the polynomials that are exact at u = 0, the
# one with the smallest relative error.
SIGMOID_1 = tl.constexpr(-0.99730818)
SIGMOID_2 = tl.constexpr(0.95915478)
SIGMOID_3 = tl.constexpr(-0.78354047)
SIGMOID_4 = tl.constexpr(0.43077698)
SIGMOID_5 = tl.constexpr(-0.10911264)
SCANNED_KEYS = tl.constexpr(1024)  # keys of a key mask that `masked_keys` reads at a time
PART = tl.constexpr(16)  # features or rows that a product by parts reads at a time


@triton.jit
def place_of(sequence_head, call):
    """Returns the Place of a (sequence, head) pair, given as sequence * heads + head.

    Clamps lengths and offsets to the sizes of the call, because on a GPU their values are not validated.
    """
    sequence = sequence_head // call.sizes.heads
    first = sequence * 0
    queries = first + call.sizes.queries
    keys = first + call.sizes.keys
    if call.cu_seqlens is not None:
        first = _integer(call.cu_seqlens, sequence, call.sizes.tokens)
        stop = _integer(call.cu_seqlens, sequence + 1, call.sizes.tokens)
        queries = tl.minimum(tl.maximum(stop - first, 0), call.sizes.queries)
        keys = queries
    seen_keys = keys
    if call.key_lengths is not None:
        seen_keys = _integer(call.key_lengths, sequence, keys)
    return Place(sequence, sequence_head % call.sizes.heads, first, queries, keys, seen_keys)


@triton.jit
def _integer(vector, index, most):
    """Returns an element of Integers as int32, clamped to the range from 0 to `most`."""
    return tl.minimum(tl.maximum(tl.load(vector.data + index * vector.step), 0), most).to(tl.int32)


@triton.jit
def row_pointers(t, place, rows):
    """Returns pointers to rows of a Strided, computed in 64 bits because an offset may exceed 2**31."""
    base = t.data + place.sequence.to(tl.int64) * t.batch + place.head.to(tl.int64) * t.head
    return base + (place.first + rows).to(tl.int64) * t.row


@triton.jit
def tile_pointers(t, place, rows, config: tl.constexpr):
    """Returns pointers to all features of some rows of a Strided, (rows, block_d)."""
    return row_pointers(t, place, rows)[:, None] + tl.arange(0, config.block_d)[None, :]


@triton.jit
def load_rows(t, place, rows, present):
    """Returns one float32 value per row of a Strided (B, H, rows); 0 for absent rows."""
    return tl.load(row_pointers(t, place, rows), mask=present, other=0.0).to(tl.float32)


@triton.jit
def load_quasi_bias(rows, present, place, call):
    """Returns quasi_bias times log2(e), one value per row, 0 for absent rows; a placeholder if the call has no bias."""
    bias = rows
    if call.quasi_bias is not None:
        bias = load_rows(call.quasi_bias, place, rows, present) * LOG2E
    return bias


@triton.jit
def store_rows(t, place, rows, present, values):
    tl.store(row_pointers(t, place, rows), values.to(t.data.dtype.element_ty), mask=present)


@triton.jit
def load_at(pointers, present, call, config: tl.constexpr, CHECKED: tl.constexpr):
    """Returns a tile loaded from `pointers`, (rows, block_d), with 0 for features beyond the head size.

    With CHECKED, absent rows are 0 too. Without CHECKED, all rows must be present.
    """
    feature = tl.arange(0, config.block_d)[None, :] < call.sizes.head_dim
    if CHECKED and config.even_dim:
        tile = tl.load(pointers, mask=present[:, None], other=0.0)
    elif CHECKED:
        tile = tl.load(pointers, mask=present[:, None] & feature, other=0.0)
    elif config.even_dim:
        tile = tl.load(pointers)
    else:
        tile = tl.load(pointers, mask=feature, other=0.0)
    return tile


@triton.jit
def load_tile(t, place, rows, present, call, config: tl.constexpr, CHECKED: tl.constexpr = True):
    return load_at(tile_pointers(t, place, rows, config), present, call, config, CHECKED)


@triton.jit
def store_tile(t, place, rows, present, tile, call, config: tl.constexpr):
    feature = tl.arange(0, config.block_d)[None, :] < call.sizes.head_dim
    pointers = tile_pointers(t, place, rows, config)
    tl.store(pointers, tile.to(t.data.dtype.element_ty), mask=present[:, None] & feature)


@triton.jit
def operand(t, place, first, rows, stop, call, config: tl.constexpr, CHECKED: tl.constexpr = True):
    """Returns rows of a tensor as an Operand. `rows` are first, first + 1, ...; those at and beyond `stop` count as 0.

    Without CHECKED, all rows must be below `stop`.
    """
    tile = rows  # placeholder for by_parts, which does not use it; Triton 3.6 cannot return a None
    if not config.by_parts:
        tile = load_tile(t, place, rows, rows < stop, call, config, CHECKED)
    return Operand(t, first, rows, stop, tile)


@triton.jit
def operand_at(pointers, t, first, rows, stop, call, config: tl.constexpr, CHECKED: tl.constexpr):
    """Returns the same Operand as `operand`, loaded from `pointers`, which the caller's loop advances."""
    tile = rows  # placeholder for by_parts, which does not use it
    if not config.by_parts:
        tile = load_at(pointers, rows < stop, call, config, CHECKED)
    return Operand(t, first, rows, stop, tile)


@triton.jit
def product_over_features(x, y, place, call, config: tl.constexpr):
    """Returns x y^T of two operands: (rows of x, rows of y), float32."""
    if config.by_parts:
        total = tl.full((x.rows.shape[0], y.rows.shape[0]), 0.0, tl.float32)
        for first in range(0, config.block_d, PART):
            a, b = _features(x, first, place, call, config), _features(y, first, place, call, config)
            total = tl.dot(a, tl.trans(b), total, input_precision=config.precision)
    else:
        total = tl.dot(x.tile, tl.trans(y.tile), input_precision=config.precision)
    return total


@triton.jit
def _features(x, first, place, call, config: tl.constexpr):
    """Loads features `first` to `first + PART - 1` of an operand's rows, (rows, PART)."""
    features = first + tl.arange(0, PART)
    pointers = row_pointers(x.source, place, x.rows)[:, None] + features[None, :]
    present = (x.rows < x.stop)[:, None]
    if not config.even_dim:
        present &= (features < call.sizes.head_dim)[None, :]
    return tl.load(pointers, mask=present, other=0.0)


@triton.jit
def add_product_over_rows(total, a, y, place, call, config: tl.constexpr):
    """Returns total + a y, (M, block_d), for a tile a of shape (M, rows of y) and an operand y."""
    if config.by_parts:
        PARTS: tl.constexpr = a.shape[1] // PART
        by_part = tl.reshape(a, (a.shape[0], PARTS, PART))
        number = tl.arange(0, PARTS)[None, :, None]
        for part in range(0, PARTS):
            rows = y.first + part * PART + tl.arange(0, PART)
            tile = load_tile(y.source, place, rows, rows < y.stop, call, config)
            columns = tl.sum(tl.where(number == part, by_part, 0.0), 1)  # selects the part: a sum with zeros is exact
            # Adds a partial sum for each part: one long sum over a thousand keys would have a larger error than eager.
            total += tl.dot(columns, tile, input_precision=config.precision)
    else:
        total = tl.dot(a.to(y.tile.dtype), y.tile, total, input_precision=config.precision)
    return total


@triton.jit
def sigmoid(x, factor, FAST: tl.constexpr):
    """Returns sigmoid(factor x / log2(e)), with relative error 2**-14 if FAST, else in float32's precision.

    With FAST the factor must be positive.

    With y = factor x / log2(e) and u = exp(-|y|) in (0, 1], sigmoid(|y|) = 1 / (1 + u) and sigmoid(-|y|) = u / (1 + u).
    FAST evaluates 1 / (1 + u) as a polynomial in u, so that exp2 is the only special function. Its constant term is 1,
    so that both tails are as exact as u.
    """
    if FAST:
        u = tl.exp2(tl.abs(x) * -factor)
        inverse = SIGMOID_5 * u + SIGMOID_4
        inverse = inverse * u + SIGMOID_3
        inverse = inverse * u + SIGMOID_2
        inverse = inverse * u + SIGMOID_1
        inverse = inverse * u + 1.0
        y = tl.where(x < 0, u * inverse, inverse)
    else:
        y = 1.0 / (1.0 + tl.exp2(x * -factor))
    return y


@triton.jit
def key_summands(keys, place, call, config: tl.constexpr):
    """Returns log2(e) times what a key mask adds to the scores of each key, (keys); -inf hides a key.

    Keys at and beyond `place.seen_keys` get -inf. Without `config.key_mask`, the result is a placeholder.
    """
    summands = keys
    if config.key_mask:
        base = call.mask.data + place.sequence.to(tl.int64) * call.mask.batch
        entries = base + place.head.to(tl.int64) * call.mask.head + keys.to(tl.int64) * call.mask.column
        here = keys < place.seen_keys
        if call.mask.data.dtype.element_ty == tl.uint8:
            summands = tl.where(tl.load(entries, mask=here, other=0) != 0, 0.0, MINUS_INFINITY)
        else:
            values = tl.load(entries, mask=here, other=MINUS_INFINITY).to(tl.float32)
            summands = tl.where(_is_visible(values, call.mask.data.dtype.element_ty), values * LOG2E, MINUS_INFINITY)
    return summands


@triton.jit
def hide_bytes(values, DIMS: tl.constexpr, call):
    """Returns `values` unchanged, so that Triton does not see that they depend on a mask of bytes.

    `values` are int32 or float32 and have DIMS dimensions. Without this function, calls with a boolean mask and dropout
    get a wrong product from Triton 3.6 and 3.7. To choose how many numbers of a row each thread reads for `tl.dot`,
    Triton takes the smallest element width among the values that the left operand depends on, here one byte. Dropout
    uses `tl.join`, after which Triton halves that width. Each thread then reads eight numbers. If a row has fewer than
    32 numbers, the two operands are read in different orders. Triton follows dependences neither through a reduction,
    such as the one here, nor through the variables of a loop.
    """
    if (call.seed is not None) and (call.mask.data.dtype.element_ty == tl.uint8):
        values = tl.max(tl.expand_dims(values, DIMS), DIMS)
    return values


@triton.jit
def masked_keys(place, call, config: tl.constexpr, SCANNED: tl.constexpr = SCANNED_KEYS):
    """Returns (first_masked, stop) of a key mask.

    `first_masked` is the first key that the mask hides or adds to, so keys before it need no mask. `stop` is 1 more
    than the last visible key (0 if there is none), so keys from `stop` on need no computation. If the mask changes no
    key, `first_masked` is `place.seen_keys`. Without `config.key_mask`, both are `place.seen_keys`.
    """
    first_masked = place.seen_keys
    stop = place.seen_keys
    if config.key_mask:
        stop = stop * 0
        for start in range(0, place.seen_keys, SCANNED):
            keys = start + tl.arange(0, SCANNED)
            summands = key_summands(keys, place, call, config)
            first_masked = tl.minimum(first_masked, tl.min(tl.where(summands == 0.0, place.seen_keys, keys), 0))
            stop = tl.maximum(stop, tl.max(tl.where(summands > MINUS_INFINITY, keys + 1, 0), 0))
    return first_masked, stop


@triton.jit
def _is_visible(values, dtype: tl.constexpr):
    """Returns which float32 values, read from an additive mask of this dtype, leave their key visible (eq. 1)."""
    if dtype == tl.float16:
        visible = values > HIDING_FLOAT16
    elif dtype == tl.bfloat16:
        visible = values > HIDING_BFLOAT16
    else:
        visible = values > HIDING_FLOAT32
    return visible


@triton.jit
def score_arguments(
    scores, context_scores, i, j, summands, quasi_bias, place, call, config: tl.constexpr, CHECKED: tl.constexpr
):
    """Returns masked scores, context scores, a factor for each of the two, and the visible entries (eq. 1 and 2).

    Scores times their factor are exponents of 2. `summands` is the result of `key_summands`, in the shape of j.
    `quasi_bias` is the result of `load_quasi_bias`, in the shape of i. Without CHECKED, scores are not masked, so every
    entry must be visible, and the mask must not add to any.
    """
    BIASED: tl.constexpr = call.quasi_bias is not None
    ADDED: tl.constexpr = CHECKED and (call.mask is not None) and (call.mask.data.dtype.element_ty != tl.uint8)
    MULTIPLIED: tl.constexpr = (not config.folds_scale) or ADDED
    if MULTIPLIED:
        scores *= call.factors.score
    if MULTIPLIED or BIASED:
        context_scores *= call.factors.score
    if BIASED:
        context_scores += quasi_bias
    factor = 1.0 if MULTIPLIED else call.factors.score
    context_factor = 1.0 if MULTIPLIED or BIASED else call.factors.score
    visible = (i < place.queries) & (j < place.seen_keys)
    if CHECKED and config.key_mask:
        visible = summands > MINUS_INFINITY
        if ADDED:
            scores += summands
            context_scores += summands
        if config.is_causal:
            visible &= j <= i
        scores = tl.where(visible, scores, MINUS_INFINITY)
    elif CHECKED:
        if config.is_causal:
            visible &= j <= i
        if call.mask is not None:
            base = call.mask.data + place.sequence.to(tl.int64) * call.mask.batch
            base += place.head.to(tl.int64) * call.mask.head
            entries = base + i.to(tl.int64) * call.mask.row + j.to(tl.int64) * call.mask.column
            if call.mask.data.dtype.element_ty == tl.uint8:
                flags = tl.load(entries, mask=visible, other=0).to(tl.int32)
                visible &= hide_bytes(flags, 2, call) != 0
            else:
                bias = tl.load(entries, mask=visible, other=MINUS_INFINITY).to(tl.float32)
                visible &= _is_visible(bias, call.mask.data.dtype.element_ty)
                scores += bias * LOG2E
                context_scores += bias * LOG2E
        scores = tl.where(visible, scores, MINUS_INFINITY)
    return scores, context_scores, factor, context_factor, visible


@triton.jit
def gate_logit_sigmoid(x_source, context_source, rows, present, side, place, call, config: tl.constexpr):
    """Returns lq or lk of some rows, (rows), from the tensors x and context and one Side of the gate (eq. 4)."""
    x = load_tile(x_source, place, rows, present, call, config)
    context = load_tile(context_source, place, rows, present, call, config)
    logit = tl.sum(x.to(tl.float32) * gate_vector(side.vector, place, call, config)[None, :], 1)
    logit += tl.sum(context.to(tl.float32) * gate_vector(side.context_vector, place, call, config)[None, :], 1)
    if side.bias is not None:
        logit += tl.load(side.bias.data + place.head * side.bias.head).to(tl.float32)
    if side.context_bias is not None:
        logit += tl.load(side.context_bias.data + place.head * side.context_bias.head).to(tl.float32)
    return sigmoid(logit, LOG2E, False)


@triton.jit
def gate_vector(vector, place, call, config: tl.constexpr):
    """Loads the gate vector of one head as float32, (block_d), 0 beyond the head size."""
    features = tl.arange(0, config.block_d)
    pointers = vector.data + place.head * vector.head + features
    return tl.load(pointers, mask=features < call.sizes.head_dim, other=0.0).to(tl.float32)


@triton.jit
def dropout_keeps(call, place, i, first_key, BLOCK_N: tl.constexpr, KEYS_FIRST: tl.constexpr):
    """Returns booleans, (M, BLOCK_N), or (BLOCK_N, M) with KEYS_FIRST: True for entries that dropout keeps.

    `i` holds the query positions, (M). `first_key` is a multiple of BLOCK_N, which is 16, 32, 64 or 128. The rule is in
    qacg_kernels/call/dropout.py: each entry uses 16 random bits. One counter gives four 32-bit words, for eight keys at
    a distance of 16, so 128 keys of a row have 16 counters. A tile with fewer keys also draws the words of all 16
    counters, and uses the bits of its own keys.
    """
    lanes = tl.expand_dims(first_key // 128 * 16 + tl.arange(0, 16), 1 if KEYS_FIRST else 0)
    rows = tl.expand_dims(i, 0 if KEYS_FIRST else 1)
    c0, c1 = tl.broadcast(lanes.to(tl.uint32), rows.to(tl.uint32))
    zero = c0 * 0
    c2 = zero + (place.sequence * call.sizes.heads + place.head).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(tl.load(call.seed), c0, c1, c2, zero, PHILOX_ROUNDS)
    if BLOCK_N < 128:
        upper = first_key // 64 % 2 == 1
        w0 = tl.where(upper, w2, w0)
        w1 = tl.where(upper, w3, w1)
    if BLOCK_N < 64:
        w0 = tl.where(first_key // 32 % 2 == 1, w1, w0)
    threshold = call.factors.threshold
    # Key j of the tile is at lane j % 16 and slot j // 16. Each join adds an axis for one bit of the slot, lowest
    # first. The permutation puts the slot's bits, highest first, before the lane.
    if BLOCK_N == 16:
        w0 = tl.where(first_key // 16 % 2 == 1, w0 >> 16, w0)
        keep = ((w0 & 0xFFFF).to(tl.int32) >= threshold).to(tl.int8)
    elif BLOCK_N == 32:
        keep = tl.permute(_halves(w0, threshold), (2, 0, 1) if KEYS_FIRST else (0, 2, 1))
    elif BLOCK_N == 64:
        keep = tl.join(_halves(w0, threshold), _halves(w1, threshold))
        keep = tl.permute(keep, (3, 2, 0, 1) if KEYS_FIRST else (0, 3, 2, 1))
    else:
        lower = tl.join(_halves(w0, threshold), _halves(w1, threshold))
        upper_words = tl.join(_halves(w2, threshold), _halves(w3, threshold))
        keep = tl.permute(tl.join(lower, upper_words), (4, 3, 2, 0, 1) if KEYS_FIRST else (0, 4, 3, 2, 1))
    if KEYS_FIRST:
        keep = tl.reshape(keep, (BLOCK_N, i.shape[0]))
    else:
        keep = tl.reshape(keep, (i.shape[0], BLOCK_N))
    return keep != 0


@triton.jit
def _halves(word, threshold):
    """Returns keep flags for the low and the high 16 bits of a word, along a new last axis, as int8."""
    low = (word & 0xFFFF).to(tl.int32) >= threshold
    high = (word >> 16).to(tl.int32) >= threshold
    return tl.join(low.to(tl.int8), high.to(tl.int8))

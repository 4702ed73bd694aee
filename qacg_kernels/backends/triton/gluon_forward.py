"""The tiled forward for Hopper GPUs in Gluon, with warps that copy, warps that compute, and products in flight.

A thread block computes 128 queries of one head. Four warps copy tiles of keys into a ring of stages in shared memory;
eight warps compute. Stage j of the ring holds keys and context keys of tile j and values of tile j - 1. In iteration i

    the softmax of tile i    overlaps with    the context scores of tile i and G V of tile i - 1,
    the sigmoid of tile i    overlaps with    the scores of tile i + 1 and P V of tile i,

so that tensor cores and arithmetic units work at the same time.

All iterations must be alike, so a tile of zeros follows the last tile; its scores are not used. The reason is ptxas: it
makes the code wait after each product if a path with products in flight meets one without, or if accumulators are set
while products are in flight (its notes C7510 to C7517).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from qacg_kernels.backends.triton import tiles

# Triton functions that Gluon kernels call, compiled by Gluon's front end.
_integer = gluon.jit(tiles._integer.fn)
place_of = gluon.jit(tiles.place_of.fn)
sigmoid = gluon.jit(tiles.sigmoid.fn)

LOG2E = tiles.LOG2E
# Triton 3.9 has this copy under another name.
copy_to_shared = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
ROWS = gl.constexpr(128)
COPYING_WARPS = gl.constexpr(4)
COPYING_THREADS = gl.constexpr(128)
# Registers per thread of the copying warps. The computing warps get the rest, to keep their products in flight.
COPYING_REGISTERS = gl.constexpr(40)


@gluon.jit
def gluon_forward_kernel(
    call, out, softmax_out, quasi_out, row_max_out, row_sum_out, STAGES: gl.constexpr, config: gl.constexpr
):
    """Computes MATH.md, eq. 1 to 8, for 128 queries of one head. Requires a lambda tensor, no mask and no dropout.

    Outputs are Strided; softmax_out and quasi_out are None if not requested.
    """
    N: gl.constexpr = config.block_n
    D: gl.constexpr = config.block_d
    DTYPE: gl.constexpr = call.query.data.dtype.element_ty
    TILE: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    blocks = gl.cdiv(call.sizes.queries, ROWS)
    place = place_of(gl.program_id(0) // blocks, call)
    # The last block first: in a causal call it sees the most keys, so it takes longest.
    first_row = (blocks - 1 - gl.program_id(0) % blocks) * ROWS
    stop = place.seen_keys
    open_keys = place.seen_keys  # keys below are visible to every query of the block
    if config.is_causal:
        stop = gl.minimum(stop, first_row + ROWS)
        open_keys = gl.minimum(open_keys, first_row + 1)
    tiles_of_keys = gl.where(first_row < place.queries, gl.cdiv(stop, N), 0)

    query = gl.allocate_shared_memory(DTYPE, [ROWS, D], TILE)
    context_query = gl.allocate_shared_memory(DTYPE, [ROWS, D], TILE)
    key = gl.allocate_shared_memory(DTYPE, [STAGES, N, D], TILE)
    context_key = gl.allocate_shared_memory(DTYPE, [STAGES, N, D], TILE)
    value = gl.allocate_shared_memory(DTYPE, [STAGES, N, D], TILE)
    # Barriers of a stage: keys and values have arrived; context keys have arrived; all of them have been read.
    there = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    context_there = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    for stage in gl.static_range(STAGES):
        mbarrier.init(there.index(stage), count=COPYING_THREADS)
        mbarrier.init(context_there.index(stage), count=COPYING_THREADS)
        mbarrier.init(free.index(stage), count=1)

    memory = (query, context_query, key, context_key, value, there, context_there, free)
    gl.warp_specialize(
        [
            (
                compute,
                (
                    memory, tiles_of_keys, first_row, open_keys, place, call, out, softmax_out, quasi_out,
                    row_max_out, row_sum_out, STAGES, config,
                ),
            ),
            (copy, (memory, tiles_of_keys, first_row, stop, place, call, STAGES, config)),
        ],
        [COPYING_WARPS],
        [COPYING_REGISTERS],
    )  # fmt: skip


@gluon.jit
def copy(memory, tiles_of_keys, first_row, stop, place, call, STAGES: gl.constexpr, config: gl.constexpr):
    """The program of the copying warps: copies queries once, then each tile of keys. Absent rows become zeros."""
    query, context_query, key, context_key, value, there, context_there, free = memory
    if tiles_of_keys > 0:  # the barrier of the first keys waits for these copies too
        copy_rows(query, call.query, first_row, place.queries, place, config)
        copy_rows(context_query, call.context_query, first_row, place.queries, place, config)
    stage = 0
    phase = 1  # the first wait for a stage finds it free
    for tile in range(gl.where(tiles_of_keys > 0, tiles_of_keys + 1, 0)):
        first_key = tile * config.block_n
        mbarrier.wait(free.index(stage), phase)
        copy_rows(key.index(stage), call.key, first_key, stop, place, config)
        first_value = first_key - config.block_n
        copy_rows(value.index(stage), call.value, first_value, gl.where(tile > 0, stop, first_value), place, config)
        async_copy.mbarrier_arrive(there.index(stage), increment_count=False)
        copy_rows(context_key.index(stage), call.context_key, first_key, stop, place, config)
        async_copy.mbarrier_arrive(context_there.index(stage), increment_count=False)
        stage += 1
        if stage == STAGES:
            stage = 0
            phase ^= 1


@gluon.jit
def copy_rows(shared, t, first, stop, place, config: gl.constexpr):
    """Starts asynchronous copies of rows first, first + 1, ... to a tile of shared memory, 16 bytes per thread.

    Rows from `stop` on become zeros.
    """
    D: gl.constexpr = config.block_d
    CHUNKS: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [COPYING_WARPS, 1], [1, 0])
    rows = gl.arange(0, shared.shape[0], gl.SliceLayout(1, CHUNKS))
    features = gl.arange(0, D, gl.SliceLayout(0, CHUNKS))
    # A 64-bit address of the first row plus 32-bit offsets, which `gluon_launch` ensures to be sufficient.
    pointers = row_pointers(t, first, place) + (rows[:, None] * t.row + features[None, :])
    copy_to_shared(shared, pointers, mask=(rows < stop - first)[:, None])


@gluon.jit
def compute(
    memory, tiles_of_keys, first_row, open_keys, place, call, out, softmax_out, quasi_out, row_max_out, row_sum_out,
    STAGES: gl.constexpr, config: gl.constexpr,
):  # fmt: skip
    """The program of the computing warps, which compute and store 16 queries each."""
    query, context_query, key, context_key, value, there, context_there, free = memory
    N: gl.constexpr = config.block_n
    D: gl.constexpr = config.block_d
    CELLS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [ROWS // 16, 1], [16, N, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [ROWS // 16, 1], [16, D, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, SUMS)
    CHECKED: gl.constexpr = (not config.even_keys) or config.is_causal
    BIASED: gl.constexpr = call.quasi_bias is not None
    factor = call.factors.score if config.folds_scale else 1.0
    context_factor = 1.0 if BIASED else factor
    if BIASED:
        rows = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, CELLS))
        quasi_bias = load_rows(call.quasi_bias, rows, place) * LOG2E
    nothing = gl.full([ROWS, N], 0.0, gl.float32, CELLS)
    o1 = gl.full([ROWS, D], 0.0, gl.float32, SUMS)
    o2 = gl.full([ROWS, D], 0.0, gl.float32, SUMS)
    row_max = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, CELLS))
    row_sum = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, CELLS))
    if tiles_of_keys > 0:
        mbarrier.wait(there.index(0), 0)
        mbarrier.wait(context_there.index(0), 0)
        fence_async_shared()
        s = warpgroup_mma(query, key.index(0).permute((1, 0)), nothing, use_acc=False, is_async=True)
        # The accumulators pass through this wait, so that ptxas sees them set before products are in flight.
        s, o1, o2 = warpgroup_mma_wait(0, (s, o1, o2))
        c_flying = warpgroup_mma(
            context_query, context_key.index(0).permute((1, 0)), nothing, use_acc=False, is_async=True
        )
        o2_flying = warpgroup_mma_init(o2)
        stage = 0
        phase = 0
        for tile in range(tiles_of_keys):
            if not config.folds_scale:
                s *= call.factors.score
            s = hidden_to(s, float("-inf"), first_row, tile, open_keys, place, config, CHECKED, CELLS)
            p, rescale, row_max, row_sum = softmax(s, row_max, row_sum, factor, CHECKED)
            last = stage
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1
            # ptxas moves arithmetic across waits for products, but not across waits for barriers, which are loops. So a
            # wait for a barrier precedes each wait for products. LLVM could move the arithmetic too, so its results are
            # arguments of the wait.
            mbarrier.wait(there.index(stage), phase)
            fence_async_shared()
            c, o2, p = warpgroup_mma_wait(0, (c_flying, o2_flying, p))
            o1 *= gl.convert_layout(rescale, ROW)[:, None]
            weights = gl.convert_layout(p.to(query.dtype), WEIGHTS)
            s_flying = warpgroup_mma(query, key.index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True)
            o1_flying = warpgroup_mma(weights, value.index(stage), o1, is_async=True)
            mbarrier.arrive(free.index(last), count=1)
            if (not config.folds_scale) or BIASED:
                c *= call.factors.score
            if BIASED:
                c += quasi_bias[:, None]
            g = sigmoid(c, context_factor, True)
            g = hidden_to(g, 0.0, first_row, tile, open_keys, place, config, CHECKED, CELLS)
            mbarrier.wait(context_there.index(stage), phase)
            fence_async_shared()
            s, o1, g = warpgroup_mma_wait(0, (s_flying, o1_flying, g))
            weights = gl.convert_layout(g.to(query.dtype), WEIGHTS)
            c_flying = warpgroup_mma(
                context_query, context_key.index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True
            )
            o2_flying = warpgroup_mma(weights, value.index(stage), o2, is_async=True)
        c, o2 = warpgroup_mma_wait(0, (c_flying, o2_flying))

    rows = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, CELLS))
    row_max = gl.where(row_max == float("-inf"), 0.0, row_max)
    store_rows(row_max_out, rows, row_max, place)
    store_rows(row_sum_out, rows, row_sum, place)
    rows = first_row + gl.arange(0, ROWS, ROW)
    o1 *= gl.convert_layout(1.0 / gl.where(row_sum == 0.0, 1.0, row_sum), ROW)[:, None]
    o2 *= call.factors.quasi
    if softmax_out is not None:
        store_tile(softmax_out, rows, o1, place, config, SUMS)
    if quasi_out is not None:
        store_tile(quasi_out, rows, o2, place, config, SUMS)
    lam = load_rows(call.gate_lambda, rows, place)
    store_tile(out, rows, o1 + lam[:, None] * o2, place, config, SUMS)


@gluon.jit
def softmax(s, row_max, row_sum, factor, CHECKED: gl.constexpr):
    """Returns exp2 of a tile of scores, the factor for earlier sums, and the new maximum and sum of each row."""
    new_max = gl.maximum(row_max, gl.max(s, 1) * factor)
    shift = new_max
    if CHECKED:
        shift = gl.where(new_max == float("-inf"), 0.0, new_max)  # -inf minus -inf would be NaN
    p = gl.exp2(s * factor - shift[:, None])
    rescale = gl.exp2(row_max - shift)
    return p, rescale, new_max, row_sum * rescale + gl.sum(p, 1)


@gluon.jit
def hidden_to(
    cells, to, first_row, tile, open_keys, place, config: gl.constexpr, CHECKED: gl.constexpr, CELLS: gl.constexpr
):
    """Returns the entries of a tile, (queries, keys), with hidden ones replaced by `to`."""
    if CHECKED:  # noqa: SIM102 - a compile-time condition
        if (tile + 1) * config.block_n > open_keys:
            keys = tile * config.block_n + gl.arange(0, config.block_n, gl.SliceLayout(0, CELLS))
            visible = (keys < place.seen_keys)[None, :]
            if config.is_causal:
                rows = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, CELLS))
                visible = visible & (keys[None, :] <= rows[:, None])
            cells = gl.where(visible, cells, to)
    return cells


@gluon.jit
def row_pointers(t, rows, place):
    """Returns 64-bit pointers to one or several rows of a Strided."""
    base = t.data + place.sequence.to(gl.int64) * t.batch + place.head.to(gl.int64) * t.head
    return base + (place.first + rows).to(gl.int64) * t.row


@gluon.jit
def load_rows(t, rows, place):
    """Returns one float32 value per row of a Strided (B, H, rows); 0 for absent rows."""
    return gl.load(row_pointers(t, rows, place), mask=rows < place.queries, other=0.0).to(gl.float32)


@gluon.jit
def store_rows(t, rows, values, place):
    gl.store(row_pointers(t, rows, place), values, mask=rows < place.queries)


@gluon.jit
def store_tile(t, rows, sums, place, config: gl.constexpr, LAYOUT: gl.constexpr):
    features = gl.arange(0, config.block_d, gl.SliceLayout(0, LAYOUT))
    pointers = row_pointers(t, rows, place)[:, None] + features[None, :]
    gl.store(pointers, sums.to(t.data.dtype.element_ty), mask=(rows < place.queries)[:, None])

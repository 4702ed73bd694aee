"""Tile sizes that `tune` measures for an entry of the tile tables. Imports no Triton.

Some shipped 16-bit entries for NVIDIA GPUs were measured; the field `measured` of a table states which. Most of the
others for head sizes 64 and 128 are the candidates that a static model, since removed, predicted to be the
fastest; NOTES.md lists the exceptions. Shipped 32-bit entries and entries for AMD GPUs are roughly the first candidates
that do not spill registers.
"""

from dataclasses import replace

from qacg_kernels.backends.triton.tile_tables import Key, TileEntry, has_wide_waves, is_amd

# (block_m, block_n, num_warps, num_stages), roughly from large to small tiles. With more than 2 stages, loads overlap
# with the previous tile, except in float32 products by parts (`KernelConfig.by_parts`). An optional fifth number limits
# the registers per thread, so that one more block fits on a multiprocessor.
_WHOLE_FORWARD = (
    (128, 128, 8, 1), (64, 128, 4, 1, 168), (64, 128, 4, 1), (64, 128, 8, 1), (32, 128, 4, 1, 128), (32, 128, 4, 1),
    (32, 128, 8, 1), (16, 128, 4, 1), (16, 128, 8, 1), (64, 64, 4, 1), (64, 64, 8, 1), (32, 64, 4, 1), (32, 64, 8, 1),
    (16, 64, 4, 1), (16, 64, 8, 1), (32, 32, 4, 1), (32, 32, 8, 1), (16, 32, 4, 1), (16, 32, 8, 1), (16, 16, 8, 1),
)  # fmt: skip
_TILED_FORWARD = (
    (128, 64, 8, 3), (128, 64, 8, 4), (64, 64, 4, 3), (128, 32, 8, 3), (64, 32, 4, 3), (128, 64, 8, 2), (64, 64, 4, 2),
    (64, 64, 8, 2), (128, 32, 8, 2), (64, 32, 4, 2), (64, 32, 8, 2), (64, 32, 8, 1), (32, 64, 4, 1), (32, 64, 8, 1),
    (32, 32, 8, 2), (128, 16, 8, 3), (128, 16, 8, 2), (32, 32, 4, 1), (32, 32, 8, 1), (16, 64, 8, 1), (16, 32, 4, 1),
    (16, 32, 8, 1), (16, 32, 16, 1), (16, 16, 8, 1),
)  # fmt: skip
_WHOLE_BACKWARD = (
    (64, 128, 8, 1), (32, 128, 8, 2), (32, 128, 8, 1), (16, 128, 8, 2), (16, 128, 8, 1), (64, 64, 4, 1), (64, 64, 8, 1),
    (32, 64, 4, 2), (32, 64, 4, 1), (32, 64, 8, 1), (16, 64, 4, 1), (16, 64, 8, 1), (32, 32, 4, 1), (32, 32, 8, 1),
    (16, 32, 4, 1), (16, 32, 8, 1), (64, 16, 8, 1), (32, 16, 8, 1), (16, 16, 4, 1), (16, 16, 8, 1), (16, 16, 16, 1),
)  # fmt: skip
_KEY_GRADIENTS = (
    (64, 128, 8, 3), (64, 128, 8, 2), (32, 128, 8, 3), (32, 128, 8, 4), (32, 128, 8, 2), (16, 128, 8, 3),
    (64, 64, 4, 2), (32, 64, 4, 3), (32, 64, 4, 2), (16, 64, 4, 3), (64, 64, 8, 1), (32, 64, 8, 1), (64, 32, 8, 1),
    (64, 32, 4, 1), (32, 64, 4, 1), (32, 32, 4, 3), (32, 32, 4, 1), (32, 32, 8, 1), (16, 32, 8, 1), (16, 32, 4, 1),
    (64, 16, 8, 1), (32, 16, 8, 1), (16, 16, 4, 1), (16, 16, 8, 1),
)  # fmt: skip
_QUERY_GRADIENTS = (
    (128, 64, 8, 3), (128, 64, 8, 2), (128, 32, 8, 3), (128, 32, 8, 4), (128, 32, 8, 2), (64, 64, 4, 3), (64, 32, 4, 3),
    (64, 32, 4, 2), (64, 64, 8, 1), (64, 32, 8, 1), (64, 32, 4, 1), (32, 64, 8, 1), (32, 64, 4, 1), (32, 32, 4, 3),
    (32, 32, 4, 1), (32, 32, 8, 1), (32, 16, 4, 1), (32, 16, 8, 1), (16, 64, 8, 1), (16, 32, 8, 1), (16, 16, 4, 1),
    (16, 16, 8, 1),
)  # fmt: skip
_TILES = {
    "whole_row_forward": _WHOLE_FORWARD,
    "tiled_forward": _TILED_FORWARD,
    "whole_row_backward": _WHOLE_BACKWARD,
    "key_gradients": _KEY_GRADIENTS,
    "query_gradients": _QUERY_GRADIENTS,
}
# The most accumulator elements per warp for float32 products by parts. Their operands occupy registers too.
_MOST_ELEMENTS = 1536
_MOST_STAGES_OF_FLOAT32 = 2
# The number of accumulators that a kernel has at the same time.
_ACCUMULATORS = {
    "whole_row_forward": 1,
    "tiled_forward": 2,
    "whole_row_backward": 3,
    "key_gradients": 3,
    "query_gradients": 2,
}


_MOST_STAGES_OF_AMD = 2  # AMD's loads go through registers, so more stages would only use more shared memory


def candidates(key: Key, architecture: str = "sm_90") -> list[TileEntry]:
    """Tile-table entries to try for a key (kernel, bits, head size, busy), roughly from large to small tiles."""
    if not is_amd(architecture):
        return _candidates(key, key[1] == 32)
    wide = has_wide_waves(architecture)
    found = [
        replace(
            entry,
            num_warps=entry.num_warps // 2 if wide else entry.num_warps,  # so that the number of lanes is the same
            num_stages=min(entry.num_stages, _MOST_STAGES_OF_AMD),
            registers=0,
        )
        for entry in _candidates(key, key[1] == 32 and not wide)
    ]
    return list(dict.fromkeys(found))


def _candidates(key: Key, by_parts: bool) -> list[TileEntry]:
    kernel, bits, head_dim, busy = key
    tiles = _TILES[kernel]
    if by_parts:
        tiles = [t for t in tiles if t[3] <= _MOST_STAGES_OF_FLOAT32 and len(t) == 4]
        # Accumulators have block_n rows (t[1]) in kernels over key blocks, else block_m rows (t[0]).
        own = 1 if kernel in ("whole_row_backward", "key_gradients") else 0
        tiles = [t for t in tiles if _ACCUMULATORS[kernel] * t[own] * head_dim <= _MOST_ELEMENTS * t[2]]
    return [TileEntry(kernel, bits, head_dim, busy, *tile) for tile in tiles]

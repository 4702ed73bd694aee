"""The compile-time configuration and launch options of a call's kernels. Imports Triton."""

import functools
from typing import NamedTuple

import triton

from qacg_kernels.backends.triton.arguments import KernelConfig
from qacg_kernels.backends.triton.tile_tables import TileEntry

# For kernels without tile sizes, which are bound by memory: those of the gate, and `row_terms_kernel`.
_SMALL_ROWS = 32
_SMALL_WARPS = 4


def power_of_two(n: int) -> int:
    """Returns the smallest power of two that is at least n and at least 16, the smallest size that tl.dot accepts."""
    return max(16, triton.next_power_of_2(n))


class Traits(NamedTuple):
    """The properties of a call, except sizes, that all its kernels have in common.

    `uneven` states whether sequences may differ in the number of keys that they see. `arguments.KernelConfig` has the
    other fields too and describes them.
    """

    uneven: bool  # True for packed calls, key_lengths and key masks: sequences may differ in their visible keys
    is_causal: bool
    column_gate: bool
    key_mask: bool
    fast_sigmoid: bool
    folds_scale: bool
    precision: str


@functools.lru_cache(maxsize=4096)
def _interned(*fields: object) -> KernelConfig:
    """Returns the same instance for equal fields, because Triton compares configurations by identity."""
    return KernelConfig(*fields)


@functools.lru_cache(maxsize=4096)
def kernel_config(
    entry: TileEntry | None, head_dim: int, queries: int, keys: int, whole_row: bool, by_parts: bool, traits: Traits
) -> tuple[KernelConfig, dict[str, int | bool]]:
    """Returns the configuration of a kernel and its launch options.

    Args:
        entry: the kernel's tile-table entry; None for kernels without tile sizes.
        head_dim: head size.
        queries, keys: lengths of the call's longest sequence.
        whole_row: whether the kernel computes single-tile rows.
        by_parts: whether its products read 16 features or rows at a time.
        traits: the other properties of the call.
    """
    block_m = min(entry.block_m if entry else _SMALL_ROWS, power_of_two(queries))
    block_n = entry.block_n if entry else _SMALL_ROWS
    block_n = min(block_n, power_of_two(keys))
    block_d = power_of_two(head_dim)
    even_keys = not traits.uneven and (keys == block_n if whole_row else keys % block_n == 0)
    config = _interned(
        traits.is_causal,
        traits.column_gate,
        traits.key_mask,
        whole_row,
        even_keys,
        head_dim == block_d,
        traits.fast_sigmoid,
        traits.folds_scale,
        traits.precision,
        by_parts,
        block_m,
        block_n,
        block_d,
    )
    warps, stages = (entry.num_warps, entry.num_stages) if entry else (_SMALL_WARPS, 1)
    if not by_parts:
        # At most one warp for each 16 x 16 results of a product: with more, several would compute the same entries.
        # Products by parts keep their warps: with fewer, calls with few queries would spill the sums of many keys.
        widest = max(block_n, block_d)
        warps = min(warps, block_m * widest // 256)
    # Triton 3.9 warns that 3.10 will fuse multiplications and additions only if asked to.
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    return config, options | ({"maxnreg": entry.registers} if entry and entry.registers else {})

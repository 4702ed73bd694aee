"""The figures of each chip that the model takes: from NVIDIA's data sheets and tables of instruction throughput."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """One GPU.

    Attributes:
        name: the product whose figures these are.
        multiprocessors, shared_bytes, shared_bytes_of_block: how many, and the memory of one of them and of a block.
        gigahertz: what it holds under matrix products, not the highest it can show. For the H200 it follows from the
            770 to 800 TFLOP/s that a product of 8192^3 reached there, 132 x 4096 FLOP a clock.
        tensor_flops: dense 16-bit FLOP a clock and multiprocessor.
        warp_product_clocks: of a scheduler's tensor core for one m16n8k16 of mma.sync. Hopper's reaches about 63 % of
            what wgmma does (Luo et al., 2024).
        fma_clocks: of a scheduler for a float32 multiply-add of a warp.
        memory_bytes, l2_bytes: a second of the whole chip's memory, and a clock and multiprocessor of its L2 cache.
    """

    name: str
    multiprocessors: int
    shared_bytes: int
    shared_bytes_of_block: int
    gigahertz: float
    tensor_flops: int
    warp_product_clocks: float
    fma_clocks: int
    memory_bytes: float
    l2_bytes: float


CHIPS = {
    "sm_80": Chip("A100 SXM", 108, 164 * 1024, 163 * 1024, 1.35, 2048, 8.0, 2, 1.7e12, 32.0),
    "sm_90": Chip("H200", 132, 228 * 1024, 227 * 1024, 1.6, 4096, 6.4, 1, 4.3e12, 32.0),
    "sm_100": Chip("B200", 148, 228 * 1024, 227 * 1024, 1.7, 8192, 6.4, 1, 7.0e12, 32.0),
}
REGISTERS = 65536  # of a multiprocessor
MOST_WARPS = 64
SCHEDULERS = 4
TENSOR_COLUMNS = 512  # of tensor memory, which sm_100 has


def resident_blocks(chip: Chip, registers: int, warps: int, shared: int, tensor_columns: int = 0) -> int:
    """Blocks that a multiprocessor holds at once; 0 if one alone does not fit.

    Registers are given to a warp by 256. A block takes 1 KiB of shared memory beside its own.
    """
    of_warp = -(-registers * 32 // 256) * 256
    limits = [REGISTERS // (of_warp * warps), MOST_WARPS // warps, chip.shared_bytes // (shared + 1024)]
    if tensor_columns:
        limits.append(TENSOR_COLUMNS // tensor_columns)
    return min(limits) if shared <= chip.shared_bytes_of_block else 0

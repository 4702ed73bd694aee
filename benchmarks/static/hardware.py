"""The hardware model: the properties of each chip, and the unit, clocks and latency of each instruction.

Properties of chips are from NVIDIA's data sheets. Throughputs are from NVIDIA's tables (arithmetic instructions by
compute capability). Latencies are from microbenchmarks of these chips, which agree within a few clocks.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.static.sass import Instruction


@dataclass(frozen=True)
class Chip:
    """The properties of a GPU.

    Attributes:
        name: the product's name.
        multiprocessors: number of multiprocessors.
        shared_bytes: shared memory of a multiprocessor, in bytes.
        shared_bytes_of_block: the most shared memory that a block may have, in bytes.
        gigahertz: the clock rate during matrix products, which is below the maximum. At this rate, the peak of an H200
            is 132 x 4096 FLOP per clock, 865 TFLOP/s. A product of 8192^3 reached 770 to 800 TFLOP/s, which is 0.89 to
            0.92 of this peak.
        tensor_flops: dense 16-bit FLOP per clock and multiprocessor.
        warp_product_clocks: clocks of a scheduler's tensor core for one m16n8k16 product of mma.sync. On Hopper,
            mma.sync reaches about 63 % of the rate of wgmma (Luo et al., 2024).
        fma_clocks: clocks of a scheduler for one float32 multiply-add of a warp.
        memory_bytes: bandwidth of the chip's memory, in bytes per second.
        l2_bytes: bandwidth of the L2 cache, in bytes per clock and multiprocessor.
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
# Masks of a call: one value per key (B, 1, 1, S), or a matrix (B, 1, L, S); additive unless boolean.
MASKS = ("none", "keys", "boolean-keys", "full", "boolean-full")
REGISTERS = 65536  # registers of a multiprocessor
MOST_WARPS = 64
SCHEDULERS = 4
TENSOR_COLUMNS = 512  # columns of a multiprocessor's tensor memory, which only sm_100 has


def resident_blocks(chip: Chip, registers: int, warps: int, shared: int, tensor_columns: int = 0) -> int:
    """The number of blocks that are resident on a multiprocessor at once; 0 if not even one fits.

    A warp gets registers in multiples of 256. A block takes 1 KiB of shared memory in addition to its own.

    Args:
        chip: the GPU.
        registers: registers per thread.
        warps: warps per block.
        shared: bytes of shared memory per block.
        tensor_columns: columns of tensor memory per block.
    """
    of_warp = -(-registers * 32 // 256) * 256
    limits = [REGISTERS // (of_warp * warps), MOST_WARPS // warps, chip.shared_bytes // (shared + 1024)]
    if tensor_columns:
        limits.append(TENSOR_COLUMNS // tensor_columns)
    return min(limits) if shared <= chip.shared_bytes_of_block else 0


# Units of the hardware, by which instructions are counted.
TENSOR, MUFU, FMA, INTEGER, SHARED, GLOBAL, BARRIER = "tensor", "mufu", "fma", "integer", "shared", "global", "barrier"
UNITS = (TENSOR, MUFU, FMA, INTEGER, SHARED, GLOBAL, BARRIER)

_BY_STEM = {
    TENSOR: ("HGMMA", "HMMA", "UTCHMMA"),
    MUFU: ("MUFU",),
    FMA: ("FFMA", "FMUL", "FADD", "FFMA2", "FMUL2", "FADD2", "HFMA2", "HADD2", "HMUL2"),
    SHARED: ("LDS", "STS", "LDSM", "STSM", "SHFL", "LDTM", "STTM", "ATOMS", "REDUX"),
    GLOBAL: ("LDG", "STG", "LDGSTS", "RED", "REDG", "ATOM", "ATOMG", "LDL", "STL", "LD", "ST"),
    BARRIER: (
        "BAR", "DEPBAR", "LDGDEPBAR", "WARPGROUP", "MEMBAR", "FENCE", "SYNCS", "UTCBAR", "WARPSYNC", "BSYNC", "BSSY",
    ),
}  # fmt: skip
_UNIT_OF = {stem: unit for unit, stems in _BY_STEM.items() for stem in stems}
_PRODUCT_SHAPE = re.compile(r"HGMMA\.64x(\d+)x")
# Clocks of the tensor cores for narrow wgmma products (by columns), which wait for a first operand in shared memory.
_NARROW = {8: 18.0, 16: 20.0, 32: 24.0}

GLOBAL_LATENCY = 600.0  # clocks of the L2 cache under load
_LATENCY = {MUFU: 22.0, FMA: 4.0, INTEGER: 5.0, SHARED: 29.0, GLOBAL: GLOBAL_LATENCY, BARRIER: 2.0}
# Clocks until the result of an mma.sync is ready, or that of the last wgmma of a group after its execution.
PRODUCT_LATENCY = 33.0


class Need(NamedTuple):
    """What an instruction of a warp occupies: its `pipe` of the scheduler, for `clocks` clocks.

    The result of the instruction is ready after `latency` clocks.
    """

    unit: str
    pipe: str  # several units may share a pipe, and integer instructions have several pipes
    clocks: float
    latency: float


def unit_of(instruction: Instruction) -> str:
    """The unit of an instruction: that of its stem in `_BY_STEM`, else INTEGER.

    A stem is an opcode without suffixes. The placeholder SKIPPED also counts as INTEGER.
    """
    return _UNIT_OF.get(instruction.stem, INTEGER)


def counts(instructions: Iterable[Instruction]) -> dict[str, int]:
    """Counts the instructions of a warp except NOP: by unit, and in total under the key "all"."""
    found = Counter(unit_of(i) for i in instructions if i.stem != "NOP")
    return {"all": sum(found.values())} | {unit: found[unit] for unit in UNITS}


def product_clocks(instruction: Instruction, chip: Chip) -> float:
    """The clocks that a scheduler's tensor core takes for a product of wgmma or mma.sync."""
    if shape := _PRODUCT_SHAPE.match(instruction.opcode):
        columns = int(shape[1])
        clocks = 2 * 64 * columns * 16 / chip.tensor_flops
        from_memory = instruction.operands.count("gdesc") == 1 and not instruction.reads
        return max(clocks, _NARROW.get(columns, 0.0)) if from_memory else clocks
    half = 0.5 if "1688" in instruction.opcode else 1.0  # m16n8k8
    return half * chip.warp_product_clocks


def need(instruction: Instruction, chip: Chip) -> Need:
    """The unit, pipe, clocks and latency of one instruction of a warp."""
    unit, stem = unit_of(instruction), instruction.stem
    if unit == TENSOR:
        clocks = 1.0 if stem == "UTCHMMA" else product_clocks(instruction, chip)
        return Need(unit, TENSOR, clocks, PRODUCT_LATENCY)
    if unit == MUFU:
        return Need(unit, MUFU, 8.0, _LATENCY[unit])
    if unit == FMA:
        double = 2 if stem.endswith("2") and stem.startswith("F") else 1
        return Need(unit, FMA, double * chip.fma_clocks, _LATENCY[unit])
    if unit == SHARED:
        return Need(unit, SHARED, _shared_clocks(instruction), _LATENCY[unit])
    if unit == GLOBAL:
        return Need(unit, SHARED, SCHEDULERS * _bytes(instruction.opcode) / 4, GLOBAL_LATENCY)
    if unit == BARRIER:
        return Need(unit, BARRIER, 1.0, _LATENCY[unit])
    if stem == "IMAD":
        return Need(unit, FMA, 2.0, 5.0)
    if stem.startswith("U") or stem in ("R2UR", "S2UR", "LDC", "LDCU", "ULDC"):
        return Need(unit, "uniform", 2.0, 10.0)
    if stem in ("S2R", "CS2R", "NOP", "BRA", "EXIT", "SKIPPED"):
        return Need(unit, "control", 1.0, 20.0 if stem == "S2R" else 4.0)
    return Need(unit, INTEGER, 2.0, 5.0)


def cache_clocks(instruction: Instruction, chip: Chip) -> float:
    """The clocks for which a load or store uses its scheduler's share of L2 bandwidth; the warp does not wait."""
    return SCHEDULERS * 32 * _bytes(instruction.opcode) / chip.l2_bytes


def _shared_clocks(instruction: Instruction) -> float:
    """The clocks of an instruction on shared memory or tensor memory.

    Shared memory has 128 bytes per clock for the four schedulers together, tensor memory 128 bytes per clock for each.
    """
    opcode = instruction.opcode
    if columns := re.search(r"TM.*\.x(\d+)", opcode):
        return float(columns[1])
    if instruction.stem in ("LDSM", "STSM"):
        parts = opcode.rsplit(".", 1)[-1]
        return SCHEDULERS * (int(parts) if parts in ("2", "4") else 1)
    return SCHEDULERS * _bytes(opcode) / 4


def _bytes(opcode: str) -> int:
    """The bytes that a load or store moves per lane, from the suffix of its opcode."""
    if ".128" in opcode:
        return 16
    if ".64" in opcode:
        return 8
    return 2 if ".U16" in opcode or ".S16" in opcode else 1 if ".U8" in opcode else 4

"""Analyses the machine code of one kernel: resources, instructions per iteration, and clocks."""

import functools
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from qacg_models.utils.atomic_files import atomic_write

from benchmarks.static import hardware, sass, scheduler
from benchmarks.static.compile import NVDISASM, Resources, compiled_for, resources
from benchmarks.static.hardware import CHIPS, MOST_WARPS, SCHEDULERS, Chip, resident_blocks
from benchmarks.static.launches import Launch
from benchmarks.static.sass import Instruction, disassembled

_MOSTLY = 0.7  # the busiest pipe bounds a kernel if it works for this share of the time
_ITERATIONS = (4, 12)
# Number of matrix products per tile, by the role of the kernel.
PRODUCTS = {
    "whole_row_forward": 3,
    "tiled_forward": 4,
    "whole_row_backward": 8,
    "key_gradients": 6,
    "query_gradients": 5,
}
FEW_PROGRAMS = "gate_gradients_kernel"
_CACHE = Path(__file__).resolve().parents[2] / "build" / "static"


@dataclass(frozen=True)
class Estimate:
    """The analysis of a kernel on one chip; `Resources` describes the attributes that are not listed.

    Attributes:
        warps: warps per block.
        resident: resident blocks per multiprocessor.
        instructions: instructions of a warp by unit, in one iteration of the loop over keys or queries; in the whole
            kernel if it has no loop.
        duplicated: the number of warps that compute the same attention entry.
        bound: "issue", "cache" or a pipe, whichever works longest; "latency" if none works for 70 % of the time.
        outside: clocks of a block outside of the loop, while all resident blocks run; before calibration.
        iteration: clocks of one iteration, while all resident blocks run; before calibration.
    """

    warps: int
    registers: int
    stack: int
    shared: int
    resident: int
    spills: int
    instructions: dict[str, int]
    wgmma: bool
    loads_in_flight: int
    duplicated: float
    bound: str
    outside: float
    iteration: float

    def clocks(self, iterations: float) -> float:
        return self.outside + self.iteration * iterations


class Work(NamedTuple):
    """The work of a kernel per tile.

    Attributes:
        cells: number of attention entries; 0 for kernels without matrix products.
        head_dim: the head size.
        products: number of matrix products, of cells x head_dim multiply-adds each.
        iterates: whether the kernel has a loop over tiles.
        exponentials: exponentials per attention entry.
    """

    cells: int
    head_dim: int
    products: int
    iterates: bool
    exponentials: int = 2  # one in the softmax and one in the sigmoid

    @property
    def flops(self) -> int:
        return 2 * self.cells * self.head_dim * self.products


def work_of(launch: Launch) -> Work:
    config, role = launch.config, launch.role
    products = PRODUCTS.get(role, 0)
    cells = config.block_m * config.block_n if products else 0
    iterates = role in ("gate_sums_kernel", FEW_PROGRAMS) or (bool(products) and role != "whole_row_forward")
    return Work(cells, config.block_d, products, iterates)


def estimate_launch(launch: Launch, architecture: str) -> Estimate:
    """Compiles a launch for a chip and analyses it.

    For the kernel FEW_PROGRAMS, the blocks of the launch are spread over the multiprocessors. For other kernels, each
    multiprocessor has as many blocks as fit.
    """
    compiled = compiled_for(launch, architecture)
    blocks = math.ceil(launch.programs / CHIPS[architecture].multiprocessors)
    most = blocks if launch.role == FEW_PROGRAMS else MOST_WARPS
    return estimate_code(compiled, architecture, launch.options["num_warps"], work_of(launch), most)


def estimate_code(
    compiled: object, architecture: str, warps: int, work: Work, most_blocks: int = MOST_WARPS
) -> Estimate:
    """Analyses a compiled kernel. Results are cached in build/, with the machine code and the model's source as key.

    Args:
        compiled: the compiled kernel of Triton.
        architecture: the chip, a key of CHIPS.
        warps: warps per block.
        work: the work of the kernel per tile.
        most_blocks: limit on the resident blocks per multiprocessor.
    """
    settings = repr((architecture, warps, work, most_blocks)).encode()
    key = hashlib.sha256(compiled.asm["cubin"] + settings + _sources()).hexdigest()
    file = _CACHE / f"{key[:32]}.json"
    if file.exists():
        return Estimate(**json.loads(file.read_text(encoding="utf-8")))
    estimate = _estimate_uncached(compiled, architecture, warps, work, most_blocks)
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as handle:
        handle.write(json.dumps(asdict(estimate)))
    return estimate


def parts_of_product(program: list[Instruction], loop: sass.Loop, warps: int, work: Work) -> int:
    """Estimates the number of iterations of a loop over parts of a float32 product.

    It is the number of multiply-adds that a thread computes for the product, divided by those of one iteration.
    """
    multiply_adds = sum(_multiply_adds(i) for i in program[loop.start : loop.stop + 1])
    return max(1, round(work.cells * work.head_dim / (32 * warps) / max(1, multiply_adds)))


def _multiply_adds(instruction: Instruction) -> int:
    """The multiply-adds of a thread in one instruction; 0 for tcgen05, whose opcode has no shape.

    FFMA has one and FFMA2 two. mma.sync divides m16n8k8 or m16n8k16 among a warp, wgmma m64nNkK among four warps.
    """
    if shape := re.match(r"HMMA\.168(\d+)\.", instruction.opcode):
        return 16 * 8 * int(shape[1]) // 32
    if shape := re.match(r"HGMMA\.64x(\d+)x(\d+)\.", instruction.opcode):
        return 64 * int(shape[1]) * int(shape[2]) // 128
    return {"FFMA": 1, "FFMA2": 2}.get(instruction.stem, 0)


@functools.cache
def _sources() -> bytes:
    """The source of the model, as part of the cache key."""
    names = ("hardware", "kernel", "sass", "scheduler")
    return b"".join((Path(__file__).parent / f"{name}.py").read_bytes() for name in names)


def _estimate_uncached(compiled: object, architecture: str, warps: int, work: Work, most_blocks: int) -> Estimate:
    program = disassembled(compiled.asm["cubin"], NVDISASM)
    main = sass.main_loop(program) if work.iterates and work.cells else None

    def ways(iterations: int) -> list[list[int]]:
        if work.iterates and not work.cells:
            return [list(sass.indices(program, None, lambda loop: iterations, sass.loading_loops(program)))]

        def times(loop: sass.Loop) -> int:
            return iterations if loop == main else parts_of_product(program, loop, warps, work)

        return [list(sass.indices(program, main, times))]

    used, chip = resources(compiled), CHIPS[architecture]
    return estimate_program(program, used, chip, warps, work, ways, most_blocks=most_blocks)


def estimate_program(
    program: list[Instruction],
    used: Resources,
    chip: Chip,
    warps: int,
    work: Work,
    ways: Callable[[int], list[list[int]]],
    iterations: tuple[int, int] = _ITERATIONS,
    most_blocks: int = MOST_WARPS,
) -> Estimate:
    """Analyses machine code along the paths of its warps.

    Args:
        program: the instructions of the kernel.
        used: its resources.
        chip: the GPU.
        warps: warps per block.
        work: its work per tile.
        ways: returns the paths of a scheduler's warps for a number of iterations. A path lists indices of instructions.
            There is one path for each warp that a scheduler has of a block, or a single path that all of them take.
        iterations: two numbers of iterations; the difference of their clocks gives the clocks of an iteration.
        most_blocks: limit on the resident blocks per multiprocessor, for launches with few blocks.

    Raises:
        ValueError: not even one block fits a multiprocessor.
    """
    resident = resident_blocks(chip, used.registers, warps, used.shared, used.tensor_columns)
    resident = min(resident, most_blocks)
    if not resident:
        raise ValueError(
            f"kernel: expected a block that fits a multiprocessor of {chip.name}, got {used.registers} registers per "
            f"thread, {warps} warps and {used.shared} bytes of shared memory"
        )
    few, more = iterations
    short, long = ways(few), ways(more)
    issued = Counter(index for way in long for index in way)
    rounds = len(long)
    if work.iterates:
        issued -= Counter(index for way in short for index in way)
        rounds *= more - few
    body = [program[index] for index, times in issued.items() for _ in range(times)]
    tcgen05 = sum(i.stem == "UTCHMMA" for i in body) / rounds
    of_block = work.flops / chip.tensor_flops / tcgen05 if tcgen05 else 0.0
    clocks_of = [scheduler.clocks(program, way, warps, resident, chip, of_block) for way in (short, long)]
    iteration = (clocks_of[1] - clocks_of[0]) / (more - few)
    outside = clocks_of[0] - few * iteration
    of_scheduler = max(1, warps // SCHEDULERS) * resident
    return Estimate(
        warps=warps,
        registers=used.registers,
        stack=used.stack,
        shared=used.shared,
        resident=resident,
        spills=used.spills,
        instructions={unit: round(count / rounds) for unit, count in hardware.counts(body).items()},
        wgmma=used.wgmma,
        loads_in_flight=used.loads_in_flight,
        duplicated=_duplicated(body, work, warps, rounds),
        bound=_bound(body, of_scheduler / rounds, iteration or outside, chip, of_block),
        outside=round(outside, 1),
        iteration=round(iteration, 1),
    )


def _duplicated(body: list[Instruction], work: Work, warps: int, rounds: int) -> float:
    """The number of warps that compute the same attention entry, estimated from the number of exponentials."""
    exponentials = sum(i.opcode == "MUFU.EX2" for i in body) / rounds
    return round(exponentials * 32 * warps / (work.exponentials * work.cells), 2) if work.cells else 1.0


def _bound(body: list[Instruction], of_scheduler: float, clocks: float, chip: Chip, of_block: float) -> str:
    """The busiest of "issue", "cache" and the pipes; "latency" if even that works less than _MOSTLY of the time."""
    busy = Counter({"issue": len(body)})
    for instruction in body:
        what = hardware.need(instruction, chip)
        busy[what.pipe] += of_block if instruction.stem == "UTCHMMA" else what.clocks
        if what.unit == hardware.GLOBAL:
            busy["cache"] += hardware.cache_clocks(instruction, chip)
    pipe, clocks_of_warp = busy.most_common(1)[0]
    return pipe if clocks_of_warp * of_scheduler >= _MOSTLY * clocks else "latency"

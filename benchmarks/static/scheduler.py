"""Simulates the warps of one scheduler: when each instruction is issued, and how many clocks all take.

The four schedulers of a multiprocessor are assumed to behave alike. So only one is simulated, with a quarter of each
block's warps and of the resources that the four share. In each clock it issues one instruction, of the first warp that
is ready. A warp issues in order; an instruction is ready when its input registers are written and its unit is free.
Products of wgmma and tcgen05 and copies into shared memory run asynchronously, until the warp waits for them.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.static.hardware import GLOBAL, PRODUCT_LATENCY, SCHEDULERS, Chip, cache_clocks, need
from benchmarks.static.sass import Instruction, pending


@dataclass(frozen=True)
class _Step:
    """The properties of an instruction that the scheduler uses; times are in clocks."""

    pipe: str
    clocks: float
    latency: float
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    kind: str = ""  # set for asynchronous instructions, and for waits
    pending: int = 0  # number of groups that a wait leaves in flight
    cache: float = 0.0  # clocks of the L2 cache
    ends_group: bool = False


@dataclass
class _Warp:
    block: int
    sequence: list[_Step]
    next: int = 0
    ready: float = 0.0
    registers: dict[str, float] = field(default_factory=dict)
    products: deque[float] = field(default_factory=deque)  # end times of the committed groups of products
    running: float = 0.0  # end time of the last issued product
    copies: deque[float] = field(default_factory=deque)
    copying: float = 0.0
    waits_at_barrier: float | None = None


def clocks(
    program: Sequence[Instruction],
    ways: Sequence[Sequence[int]],
    warps: int,
    blocks: int,
    chip: Chip,
    block_product_clocks: float = 0.0,
) -> float:
    """Returns the clocks until the last warp of `blocks` resident blocks has finished.

    Args:
        program: the instructions of the kernel.
        ways: paths, each a list of indices of instructions. There is one path for each warp that the scheduler has of a
            block, or a single path that all of them take.
        warps: warps per block.
        blocks: resident blocks per multiprocessor.
        chip: the GPU.
        block_product_clocks: clocks of a tcgen05 product of a block, which do not follow from the opcode.
    """
    indices = {index for way in ways for index in way}
    steps = {index: _step(program[index], chip, block_product_clocks) for index in indices}
    sequences = [[steps[index] for index in way] for way in ways]
    of_block = max(1, warps // SCHEDULERS)
    alive = [_Warp(block, sequences[n % len(ways)]) for block in range(blocks) for n in range(of_block)]
    free: dict[str, float] = {}
    issued = finished = 0.0
    while alive:
        start, warp = _first(alive, free)
        if warp is None:
            raise RuntimeError("scheduler: expected a warp that can issue, got warps that all wait at barriers")
        step = warp.sequence[warp.next]
        start = max(start, issued)
        issued = start + 1
        _issue(warp, step, start, free, of_block)
        warp.next += 1
        if step.kind == "barrier":
            warp.waits_at_barrier = start + step.latency
            _release(alive, warp.block, of_block)
        if warp.next == len(warp.sequence):
            finished = max(finished, warp.ready, warp.running)
            alive.remove(warp)
    return finished


def _first(alive: list[_Warp], free: dict[str, float]) -> tuple[float, _Warp | None]:
    """Returns the earliest time at which a warp can issue, and that warp.

    Of several warps that can issue at this time, it is the warp that has issued the most instructions. Returns
    (inf, None) if all warps wait at barriers.
    """
    best, chosen = float("inf"), None
    for warp in alive:
        if warp.waits_at_barrier is not None:
            continue
        step = warp.sequence[warp.next]
        start = max(warp.ready, free.get(step.pipe, 0.0))
        registers = warp.registers
        for name in step.reads:
            start = max(start, registers.get(name, 0.0))
        if step.kind == "products done":
            start = max(start, _after(warp.products, step.pending))
        elif step.kind == "copies done":
            start = max(start, _after(warp.copies, step.pending))
        elif step.kind == "all done":
            start = max(start, warp.running)
        if start < best or (start == best and chosen is not None and warp.next > chosen.next):
            best, chosen = start, warp
    return best, chosen


def _after(groups: deque[float], pending: int) -> float:
    """The time at which all groups except the last `pending` are done."""
    return max(list(groups)[: len(groups) - pending], default=0.0)


def _issue(warp: _Warp, step: _Step, start: float, free: dict[str, float], of_block: int) -> None:
    warp.ready = start + 1
    done = start + step.latency
    if step.kind == "product":  # asynchronous: the next product of the tensor cores starts after it
        begin = max(start, free.get("tensor cores", 0.0))
        free["tensor cores"] = begin + step.clocks
        warp.running = begin + step.clocks + PRODUCT_LATENCY
        if step.ends_group:
            warp.products.append(warp.running)
        free[step.pipe] = start + 1
    elif step.kind == "block product":
        # One warp issues the product for the block. Here every warp issues its share.
        begin = max(start, free.get("tensor cores", 0.0))
        free["tensor cores"] = begin + step.clocks / of_block
        warp.running = begin + step.clocks + PRODUCT_LATENCY
        free[step.pipe] = start + 1
    else:
        free[step.pipe] = start + step.clocks
        done = start + max(step.latency, step.clocks)
        if step.cache:  # queues at the cache, while the warp continues
            free["cache"] = max(start, free.get("cache", 0.0)) + step.cache
            done = free["cache"] + step.latency
        if step.kind == "copy":
            warp.copying = done
        elif step.kind == "copies group":
            warp.copies.append(warp.copying)
    for name in step.writes:
        warp.registers[name] = done


def _release(alive: list[_Warp], block: int, of_block: int) -> None:
    """Releases the warps of a block when all have reached the barrier."""
    there = [warp for warp in alive if warp.block == block and warp.waits_at_barrier is not None]
    if len(there) == of_block:
        last = max(warp.waits_at_barrier for warp in there)
        for warp in there:
            warp.ready, warp.waits_at_barrier = max(warp.ready, last), None


def _step(instruction: Instruction, chip: Chip, block_product_clocks: float) -> _Step:
    what = need(instruction, chip)
    opcode, stem = instruction.opcode, instruction.stem
    parts = (what.pipe, what.clocks, what.latency, instruction.reads, instruction.writes)
    if stem == "HGMMA":
        # The instruction goes to the pipe "wgmma", and its product queues at "tensor cores".
        return _Step("wgmma", *parts[1:4], (), "product", ends_group="gsb0" in instruction.operands)
    if stem == "UTCHMMA":
        return _Step("wgmma", block_product_clocks, what.latency, (), (), "block product")
    if stem == "HMMA":
        return _Step("tensor cores", *parts[1:])
    if opcode.startswith("WARPGROUP.DEPBAR"):
        return _Step(*parts, "products done", pending(instruction))
    if stem == "DEPBAR" and "SB" in instruction.operands:
        return _Step(*parts, "copies done", pending(instruction))
    if what.unit == GLOBAL:
        return _Step(*parts, "copy" if stem == "LDGSTS" else "", cache=cache_clocks(instruction, chip))
    if stem == "LDGDEPBAR":
        return _Step(*parts, "copies group")
    if stem == "SYNCS" and "TRYWAIT" in opcode and block_product_clocks:
        return _Step(*parts, "all done")  # tcgen05 products signal their end at such a barrier
    if stem == "BAR" and "SYNC" in opcode:
        return _Step(*parts, "barrier")
    return _Step(*parts)

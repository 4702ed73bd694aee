"""Predicts a whole call: all its kernels in sequence, each limited by its warps or by memory."""

import math
from typing import NamedTuple

from benchmarks.cases import BACKWARD, FLOP_CONVENTION, FORWARD, LAMBDA, QUASI_ATTENTION_FLOPS, Shape
from benchmarks.static import kernel
from benchmarks.static.calibrate import calibration, rate
from benchmarks.static.hardware import CHIPS
from benchmarks.static.launches import Launch, launch_of_row, launches_of
from qacg_kernels.backends.triton.tile_tables import Table, TileEntry

PASSES = (FORWARD, BACKWARD)
CONVENTION = (
    f"Counted rates: {FLOP_CONVENTION}. Executed rates: 2 L S D for each product that the kernels execute. "
    "A kernel that computes a part of a pass has an executed rate only."
)
# Kernels that compute a whole pass.
WHOLE_PASSES = {
    "whole_row_forward": FORWARD,
    "tiled_forward": FORWARD,
    "forward": FORWARD,
    "forward_short": FORWARD,
    "hopper_forward": FORWARD,
    "whole_row_backward": BACKWARD,
}
_LAUNCH_SECONDS = 2.5e-6  # from the end of one kernel to the start of the next
_REACHED = 0.9  # share of the memory bandwidth that kernels reach
# Number of (B, H, L, D) tensors that a kernel reads or writes: in the call's dtype, and in float32.
_TRAFFIC = {
    "whole_row_forward": (6, 0),
    "tiled_forward": (6, 0),
    "whole_row_backward": (11, 0),
    "key_gradients": (9, 0),
    "query_gradients": (8, 0),
    "row_terms_kernel": (3, 0),
    "gate_sums_kernel": (4, 0),
    "gate_gradients_kernel": (0, 0),
}


class Predicted(NamedTuple):
    """The prediction for a call: its time, what bounds its slowest kernel, and its number of matrix products."""

    seconds: float
    bound: str
    products: int


def predict(table: Table, shape: Shape, pass_: str, bits: int, busy: bool, gate: str = LAMBDA) -> Predicted:
    """Predicts a call on the chip of a tile table; allocates memory for one sequence.

    Args:
        table: the tile table.
        shape: the sizes of the call.
        pass_: FORWARD or BACKWARD.
        bits: element width, 16 or 32.
        busy: whether the call has dropout.
        gate: a member of `cases.GATES`.
    """
    one = (1, shape.heads, shape.length, shape.head_dim)
    parts = [
        _seconds(launch, table.architecture, shape, bits)
        for launch in launches_of(table, one, bits, busy, pass_ == BACKWARD, gate=gate)
    ]
    return Predicted(sum(p.seconds for p in parts), max(parts).bound, sum(p.products for p in parts))


def _seconds(launch: Launch, architecture: str, shape: Shape, bits: int) -> Predicted:
    estimate = kernel.estimate_launch(launch, architecture)
    programs = launch.programs * (1 if launch.role == kernel.FEW_PROGRAMS else shape.batch)
    narrow, wide = _TRAFFIC[launch.role]
    elements = shape.batch * shape.heads * shape.length * shape.head_dim
    moved = elements * (narrow * bits // 8 + wide * 4)
    products = kernel.PRODUCTS.get(launch.role, 0)
    return predict_kernel(architecture, estimate, programs, _iterations(launch, shape), moved, products)


def predict_kernel(
    architecture: str, estimate: kernel.Estimate, programs: int, iterations: int, moved: float, products: int
) -> Predicted:
    """Predicts the time of a kernel, which is limited by its warps or by the memory bandwidth.

    Args:
        architecture: the chip.
        estimate: the analysis of the kernel.
        programs: number of blocks of the launch.
        iterations: number of iterations of the kernel's loop.
        moved: bytes that the kernel reads from memory and writes to it.
        products: number of its matrix products.
    """
    chip = CHIPS[architecture]
    waves = math.ceil(programs / (chip.multiprocessors * estimate.resident))
    computing = waves * estimate.clocks(iterations) / (chip.gigahertz * 1e9 * calibration().factor)
    moving = moved / (_REACHED * chip.memory_bytes)
    bound = estimate.bound if computing > moving else "memory"
    return Predicted(max(computing, moving) + _LAUNCH_SECONDS, bound, products)


def _iterations(launch: Launch, shape: Shape) -> int:
    """The number of iterations of a kernel's loop, in a call without mask, packed sequences or causality."""
    if launch.role == "gate_sums_kernel":
        return math.ceil(min(launch.constants["ROWS"], shape.length) / launch.config.block_m)
    if launch.role == kernel.FEW_PROGRAMS:
        chunks = math.ceil(shape.length / launch.constants["ROWS"])
        return math.ceil(shape.batch * shape.heads * chunks / launch.constants["ADDED"])
    if launch.role in ("key_gradients", "whole_row_backward"):
        return math.ceil(shape.length / launch.config.block_m)
    return math.ceil(shape.length / launch.config.block_n)


def call_rates(predicted: Predicted, shape: Shape, pass_: str) -> tuple[float, float]:
    """The counted and the executed rate of a call, in TFLOP/s.

    The executed rate includes products that the kernels repeat, the counted rate does not.
    """
    entries = shape.batch * shape.heads * shape.length**2 * shape.head_dim
    flops = (QUASI_ATTENTION_FLOPS[pass_], 2 * predicted.products)
    counted, executed = (count * entries / predicted.seconds / 1e12 for count in flops)
    return counted, executed


def counted_rate(kernel_name: str, executed: float, products: int) -> float | None:
    """Converts a kernel's executed rate to its counted rate, in TFLOP/s.

    The executed rate includes products that the kernel repeats, the counted rate does not. Returns None for a kernel
    that computes only a part of a pass.

    Args:
        kernel_name: the kernel's name.
        executed: its executed rate, in TFLOP/s.
        products: the number of its matrix products.
    """
    pass_ = WHOLE_PASSES.get(kernel_name)
    return None if pass_ is None else executed * QUASI_ATTENTION_FLOPS[pass_] / (2 * products)


class EstimatedEntry(NamedTuple):
    """The analysis of a tile-table entry, and its executed rate in TFLOP/s in a call with many tiles and blocks."""

    entry: TileEntry
    estimate: kernel.Estimate
    tflops: float


def estimate_entry(table: Table, entry: TileEntry, mask: str = "none") -> EstimatedEntry:
    launch = launch_of_row(table, entry, mask)
    estimate, work = kernel.estimate_launch(launch, table.architecture), kernel.work_of(launch)
    tiles = 1
    clocks = estimate.iteration
    if entry.kernel.startswith("whole_row"):  # few tiles, so the time outside of the loop counts too
        tiles = math.ceil(launch.config.block_n / launch.config.block_m) if work.iterates else 1
        clocks = estimate.clocks(tiles)
    return EstimatedEntry(
        entry, estimate, calibration().factor * rate(table.architecture, work.flops * tiles * estimate.resident, clocks)
    )

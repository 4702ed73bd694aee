"""Predicts a whole call: all its kernels in sequence, each limited by its warps or by memory."""

import math
from typing import NamedTuple

from benchmarks.cases import BACKWARD, FORWARD, Shape
from benchmarks.static import kernel
from benchmarks.static.calibrate import calibration, rate
from benchmarks.static.hardware import CHIPS
from benchmarks.static.launches import Launch, launch_of_row, launches_of
from qacg_kernels.backends.triton.tile_tables import Table, TileEntry

PASSES = (FORWARD, BACKWARD)
# FLOP per query, key and feature that a call's rate counts, whatever its kernels run; a kernel's own rate counts what
# that kernel runs.
CALL_FLOPS = {FORWARD: 8, BACKWARD: 16}
CONVENTION = (
    "a call counts 8 B H L S D forward and 16 backward, the same for every form of it; a kernel's own line counts "
    "2 L S D for each product that this kernel runs"
)
_LAUNCH_SECONDS = 2.5e-6  # from the end of one kernel to the work of the next
_REACHED = 0.9  # of the memory's rate
# Tensors of (B, H, L, D) that a kernel reads or writes, in the call's type and in float32.
_TRAFFIC = {
    "whole_row_forward": (6, 0),
    "tiled_forward": (6, 0),
    "whole_row_backward": (11, 0),
    "key_gradients": (9, 0),
    "query_gradients": (8, 0),
    "row_terms_kernel": (3, 0),
}


class Predicted(NamedTuple):
    """Seconds of a call, and whether memory alone bounds its longest kernel."""

    seconds: float
    bound: str


def predict(table: Table, shape: Shape, pass_: str, bits: int, busy: bool) -> Predicted:
    """A call of one shape on the chip of the table; memory is allocated for one sequence."""
    one = (1, shape.heads, shape.length, shape.head_dim)
    parts = [
        _seconds(launch, table.architecture, shape, bits)
        for launch in launches_of(table, one, bits, busy, pass_ == BACKWARD)
    ]
    return Predicted(sum(p.seconds for p in parts), max(parts).bound)


def _seconds(launch: Launch, architecture: str, shape: Shape, bits: int) -> Predicted:
    chip, judged = CHIPS[architecture], kernel.judge(launch, architecture)
    programs = launch.programs * shape.batch
    waves = math.ceil(programs / (chip.multiprocessors * judged.resident))
    computing = waves * judged.clocks(_iterations(launch, shape)) / (chip.gigahertz * 1e9 * calibration().factor)
    narrow, wide = _TRAFFIC[launch.role]
    elements = shape.batch * shape.heads * shape.length * shape.head_dim
    moving = elements * (narrow * bits // 8 + wide * 4) / (_REACHED * chip.memory_bytes)
    return Predicted(max(computing, moving) + _LAUNCH_SECONDS, judged.bound if computing > moving else "memory")


def _iterations(launch: Launch, shape: Shape) -> int:
    """Iterations of the kernel's loop in a call without a mask, packing or causality."""
    if launch.role in ("key_gradients", "whole_row_backward"):
        return math.ceil(shape.length / launch.config.block_m)
    return math.ceil(shape.length / launch.config.block_n)


def tflops(seconds: float, shape: Shape, pass_: str) -> float:
    cells = shape.batch * shape.heads * shape.length**2
    return CALL_FLOPS[pass_] * cells * shape.head_dim / seconds / 1e12


class JudgedRow(NamedTuple):
    """An entry of a tile table, its analysis, and its rate with many tiles and blocks."""

    row: TileEntry
    judged: kernel.Judged
    tflops: float


def judge_row(table: Table, row: TileEntry) -> JudgedRow:
    launch = launch_of_row(table, row)
    judged, work = kernel.judge(launch, table.architecture), kernel.work_of(launch)
    tiles = 1
    clocks = judged.iteration
    if row.kernel.startswith("whole_row"):  # few tiles: a block's whole run counts
        tiles = math.ceil(launch.config.block_n / launch.config.block_m) if work.iterates else 1
        clocks = judged.clocks(tiles)
    return JudgedRow(
        row, judged, calibration().factor * rate(table.architecture, work.flops * tiles * judged.resident, clocks)
    )

"""Time and memory of the fused operator, compared with the same attention in plain PyTorch operations.

`python -m qacg_models.demos.speed NAME B H L D` measures the memory of one implementation in its own process.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from statistics import median

from qacg_models.utils.child_python import module_command

SHAPES = ((8, 12, 128, 64), (2, 12, 512, 64))
METHOD = (
    "Float32, no mask, median of interleaved runs (eager, fused, eager, fused, ...) in one process."
    " Memory: growth of the peak resident memory during one forward and backward pass of the last shape; each"
    " implementation runs in a fresh process, after a small warm-up. The growth includes outputs, gradients and tensors"
    " saved for the backward pass, not the inputs."
)


@dataclass(frozen=True)
class SpeedRow:
    """Times and memory for one shape, of the forward pass alone or with the backward pass.

    Attributes:
        shape: (B, H, L, D).
        backward: whether the times include the backward pass.
        eager_ms, fused_ms: median times in milliseconds.
        runs: number of timed runs of each implementation.
        eager_mb, fused_mb: growth of the peak resident memory by one forward and backward pass, in MB (10^6 bytes).
            The two rows of the last shape have equal values. None for other shapes, or if /proc does not report the
            peak memory.
    """

    shape: tuple[int, int, int, int]
    backward: bool
    eager_ms: float
    fused_ms: float
    runs: int
    eager_mb: float | None
    fused_mb: float | None

    @property
    def speedup(self) -> float:
        """Time of the eager implementation, divided by that of the fused one."""
        return self.eager_ms / self.fused_ms


def speed_table(shapes=SHAPES, seconds: float = 0.6, minimum_runs: int = 5) -> list[SpeedRow]:
    """Measures the times of every shape, without and with the backward pass, and the memory of the last shape.

    Args:
        shapes: sequence of (B, H, L, D).
        seconds: minimum measuring time per row in seconds; one untimed run of each implementation comes first.
        minimum_runs: minimum number of timed runs of each implementation.

    Raises:
        subprocess.CalledProcessError: a process that measures memory failed.
    """
    with ThreadPoolExecutor() as pool:
        memory = dict(zip(IMPLEMENTATIONS, pool.map(peak_growth, IMPLEMENTATIONS, repeat(shapes[-1]))))
    nothing = dict.fromkeys(IMPLEMENTATIONS)
    rows = []
    for shape in shapes:
        for backward in (False, True):
            calls = {name: _call(name, shape, backward) for name in IMPLEMENTATIONS}
            times = _interleaved(calls, seconds, minimum_runs)
            eager, fused = (1e3 * median(times[name]) for name in ("eager", "fused"))
            used = memory if shape == shapes[-1] else nothing
            rows.append(SpeedRow(shape, backward, eager, fused, len(times["fused"]), used["eager"], used["fused"]))
    return rows


def speed_cells(rows: list[SpeedRow]) -> tuple[list[str], list[list[str]]]:
    """Returns header and rows of the table; only rows with the backward pass show the memory."""
    header = ["(B, H, L, D)", "direction", "eager ms", "fused ms", "times faster", "eager MB", "fused MB"]

    def memory(row: SpeedRow, value: float | None) -> str:
        return f"{value:.1f}" if row.backward and value is not None else ""

    return header, [
        [
            str(row.shape),
            "forward + backward" if row.backward else "forward",
            f"{row.eager_ms:.2f}",
            f"{row.fused_ms:.2f}",
            f"{row.speedup:.1f}",
            memory(row, row.eager_mb),
            memory(row, row.fused_mb),
        ]
        for row in rows
    ]


def peak_growth(name: str, shape: tuple[int, int, int, int]) -> float | None:
    """Returns by how many MB (10^6 bytes) one forward and backward pass raises the peak memory of a fresh process.

    The memory is resident memory. The result is None if /proc does not report the peak memory.

    Args:
        name: name of an implementation, a key of IMPLEMENTATIONS.
        shape: (B, H, L, D).

    Raises:
        subprocess.CalledProcessError: the process failed; its errors went to stderr.
    """
    if _resident("VmHWM") is None:
        return None
    command = module_command("qacg_models.demos.speed", name, *shape)
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return int(out) / 1e6


def _fused(tensors, gate):
    import qacg_kernels

    return qacg_kernels.quasi_attention(*tensors, gate)


def _eager(tensors, gate):
    from qacg_models.modules.attention import eager_quasi_attention

    return eager_quasi_attention(tensors, gate, None, 0.0, 1.0)[0]


IMPLEMENTATIONS = {"eager": _eager, "fused": _fused}


def _call(name: str, shape: tuple[int, int, int, int], backward: bool) -> Callable[[], None]:
    import torch

    from qacg_kernels import GateParameters

    generator = torch.Generator().manual_seed(0)
    tensors = tuple(torch.randn(shape, generator=generator, requires_grad=backward) for _ in range(5))
    vectors = [torch.randn(shape[-1], generator=generator, requires_grad=backward) for _ in range(4)]
    query, context_query, key, context_key = vectors
    gate = GateParameters(query, context_query, key, context_key, None, None)
    weight = torch.randn(shape, generator=generator)
    attend = IMPLEMENTATIONS[name]

    def call() -> None:
        with torch.set_grad_enabled(backward):
            out = attend(tensors, gate)
            if backward:
                # Gradients of this run only, which are not added to those of earlier runs.
                torch.autograd.grad(out, (*tensors, *vectors), weight)

    return call


def _interleaved(calls: dict[str, Callable[[], None]], seconds: float, minimum_runs: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds
    while len(times["fused"]) < minimum_runs or time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def _resident(field: str) -> int | None:
    """Returns the bytes of a field in /proc/self/status, such as VmHWM (peak memory); None if it does not exist."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    # VmHWM is the peak of this program alone; the peak that getrusage reports includes that of the parent process.
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _main(name: str, *shape: str) -> None:
    _call(name, (1, 1, 16, int(shape[-1])), backward=True)()
    call = _call(name, tuple(map(int, shape)), backward=True)
    before = _resident("VmHWM")
    call()
    print(_resident("VmHWM") - before)


if __name__ == "__main__":
    _main(*sys.argv[1:])

"""Peak memory of a forward and its backward.

The result is the temporary memory: the peak without inputs, output, saved tensors and gradients. On a GPU it comes from
the counters of torch's allocator. On the CPU a new process measures it as follows.

- The kernel records the peak (VmHWM, reset through /proc/self/clear_refs), so short peaks are included.
- Forward and backward are measured separately, because gradients exist only in the backward. If they were subtracted
  from the forward's peak, the temporary memory of the forward would be too small.
- A warm-up call on 16 keys loads libraries and starts thread pools. It is short, because buffers that a call of the
  measured size allocates and keeps would be part of the baseline. Freed pages are returned to the system before the
  baseline is read.
- Saved tensors are counted in a second run, so that counting does not change the first.
- A known allocation of 64 MB is measured in the same way. If the result differs by more than 4 MB, nothing is reported.
"""

import ctypes
import gc
import multiprocessing
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks import records
from benchmarks.cases import FORWARD, Case, Inputs, Shape, draw
from benchmarks.implementations.registry import COMPILED, IMPLEMENTATIONS, Call

MB = 10**6
CPU_METHOD = (
    "new process, warm-up on 16 keys, freed pages returned; peak resident size (VmHWM, reset through "
    "/proc/self/clear_refs) minus resident size before the forward, minus output and saved tensors, and in "
    "the backward minus gradients; the larger of forward and backward"
)
GPU_METHOD = (
    "torch's allocator: peak of allocated bytes minus those allocated before the forward, minus output and saved "
    "tensors, and in the backward minus gradients; the larger of forward and backward"
)
_CONTROL_BYTES = 64 * MB
_CONTROL_SLACK = 4 * MB
_CLEAR_REFS = Path("/proc/self/clear_refs")


class NotMeasurableError(RuntimeError):
    """Peak memory cannot be measured here; the message has the reason."""


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """The size in bytes of each distinct storage of some tensors, by address."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def saved_bytes(call: Call, inputs: Inputs) -> int:
    """The bytes that autograd saves for the backward, without the inputs and the output."""
    saved: list[torch.Tensor] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        saved.append(t.detach())  # keeps the storage alive, so that addresses stay distinct
        return t.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = call(*inputs.operands)
    others = storages([*inputs.tensors, out])
    return sum(size for address, size in storages(saved).items() if address not in others)


class PeakOnCpu:
    """Measures the peak resident size of functions, above the resident size when the object was created."""

    def __init__(self) -> None:
        gc.collect()
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):  # glibc; other C libraries return large blocks at once
            libc.malloc_trim(0)
        self.baseline = _resident("VmRSS")

    def run(self, action: Callable[..., object], *arguments: object) -> tuple[object, int]:
        """Calls a function; returns its result and the peak in bytes above the baseline."""
        try:
            _CLEAR_REFS.write_text("5", encoding="ascii")
        except OSError as error:
            raise NotMeasurableError(
                f"memory: expected a Linux on which a process can write {_CLEAR_REFS}, got {error}"
            ) from error
        result = action(*arguments)
        return result, _resident("VmHWM") - self.baseline


def _resident(field: str) -> int:
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError as error:
        raise NotMeasurableError(f"memory: expected a Linux with /proc/self/status, got {error}") from error
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    if found is None:
        raise NotMeasurableError(f"memory: expected {field} in /proc/self/status, got none")
    return 1024 * int(found[1])


class PeakOnGpu:
    """Like PeakOnCpu, for the memory that torch has allocated on the current CUDA device."""

    def __init__(self) -> None:
        self.baseline = torch.cuda.memory_allocated()

    def run(self, action: Callable[..., object], *arguments: object) -> tuple[object, int]:
        torch.cuda.reset_peak_memory_stats()
        result = action(*arguments)
        torch.cuda.synchronize()
        return result, torch.cuda.max_memory_allocated() - self.baseline


def control(device: str = "cpu") -> int:
    """Measures an allocation of known size, and returns the measured bytes."""
    peak = PeakOnCpu() if device == "cpu" else PeakOnGpu()
    _, found = peak.run(lambda: torch.ones(_CONTROL_BYTES, dtype=torch.uint8, device=device))
    if abs(found - _CONTROL_BYTES) > _CONTROL_SLACK:
        raise NotMeasurableError(
            f"memory: expected {_CONTROL_BYTES / MB:.0f} MB for a known allocation, got {found / MB:.1f} MB"
        )
    return found


def measure_on_gpu(case: Case, name: str, call: Call, source: records.Origin) -> records.MemoryRecord:
    """Measures an implementation on the current CUDA device. The warm-up compiles and allocates workspaces."""
    return _measure(case, name, source, lambda _: call, warm_up=case)


def measure_here(case: Case, name: str) -> records.MemoryRecord:
    """Measures a case on the CPU in this process, which should have done nothing else before."""
    if name == COMPILED:
        raise NotMeasurableError(
            f"implementation: expected one that runs no compiler, got {COMPILED!r}: it compiles in the measured "
            "process, so the compiler's memory would count"
        )
    implementation = IMPLEMENTATIONS[name]
    if reasons := implementation.unsupported(case):
        raise NotMeasurableError(f"implementation: expected one that supports {case}, got {name!r}: {reasons[0]}")
    warm_up = replace(case, shape=Shape(1, 1, 16, case.shape.head_dim))
    return _measure(case, name, records.origin(), implementation.build, warm_up)


def measure_in_process(case: Case, name: str, threads: int) -> records.MemoryRecord:
    """Measures peak memory on the CPU in a new process, which has done nothing else before."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        return pool.submit(measure_here, case, name).result()


def _measure(
    case: Case, name: str, source: records.Origin, build: Callable[[Case], Call], warm_up: Case
) -> records.MemoryRecord:
    call, generator, trains = build(case), torch.Generator(case.device).manual_seed(0), case.mode != FORWARD

    def backward(out: torch.Tensor, inputs: Inputs) -> list[torch.Tensor]:
        # Softmax attention alone does not use the context and the gate.
        grads = torch.autograd.grad(out, inputs.operands, inputs.grad_out, allow_unused=True)
        return [grad for grad in grads if grad is not None]

    with torch.set_grad_enabled(trains):
        first = draw(warm_up, generator)
        out = build(warm_up)(*first.operands)
        if trains:
            backward(out, first)
        del first, out
        control_bytes = control(case.device)
        inputs = draw(case, generator)
        peak = PeakOnCpu() if case.device == "cpu" else PeakOnGpu()
        out, forward_peak = peak.run(lambda: call(*inputs.operands))
        grads, backward_peak = peak.run(backward, out, inputs) if trains else ([], 0)
        given, output, gradient = (sum(storages(tensors).values()) for tensors in (inputs.tensors, [out], grads))
        del out, grads
        saved = saved_bytes(call, inputs) if trains else 0
    forward_extra = forward_peak - output - saved
    backward_extra = backward_peak - output - saved - gradient if trains else 0
    megabytes = {
        "input_mb": given,
        "output_mb": output,
        "saved_mb": saved,
        "gradient_mb": gradient,
        "forward_extra_mb": forward_extra,
        "backward_extra_mb": backward_extra,
        "extra_mb": max(forward_extra, backward_extra),
        "control_mb": control_bytes,
    }
    return records.MemoryRecord(
        origin=source,
        **records.case_fields(case),
        implementation=name,
        **{field: records.rounded(size / MB) for field, size in megabytes.items()},
        method=CPU_METHOD if case.device == "cpu" else GPU_METHOD,
    )

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
from dataclasses import dataclass, replace
from functools import partial
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


@dataclass(frozen=True)
class _Bytes:
    """Bytes of one forward and backward. Peaks do not include memory that was allocated before the forward."""

    inputs: int
    output: int
    saved: int
    gradients: int
    forward_peak: int
    backward_peak: int
    control: int


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


def _record(case: Case, name: str, source: records.Origin, sizes: _Bytes, method: str) -> records.MemoryRecord:
    """Makes a record: subtracts outputs, saved tensors and gradients from the peaks."""
    forward_extra = sizes.forward_peak - sizes.output - sizes.saved
    backward_extra = 0
    if case.mode != FORWARD:
        backward_extra = sizes.backward_peak - sizes.output - sizes.saved - sizes.gradients
    megabytes = {
        "input_mb": sizes.inputs,
        "output_mb": sizes.output,
        "saved_mb": sizes.saved,
        "gradient_mb": sizes.gradients,
        "forward_extra_mb": forward_extra,
        "backward_extra_mb": backward_extra,
        "extra_mb": max(forward_extra, backward_extra),
        "control_mb": sizes.control,
    }
    return records.MemoryRecord(
        origin=source,
        **records.case_fields(case),
        implementation=name,
        **{field: records.rounded(size / MB) for field, size in megabytes.items()},
        method=method,
    )


def _require_control(found: int) -> int:
    if abs(found - _CONTROL_BYTES) > _CONTROL_SLACK:
        raise NotMeasurableError(
            f"memory: expected {_CONTROL_BYTES / MB:.0f} MB for a known allocation, got {found / MB:.1f} MB"
        )
    return found


# On a GPU.


def measure_on_gpu(case: Case, name: str, call: Call, source: records.Origin) -> records.MemoryRecord:
    """Measures an implementation on the current CUDA device in a case with a backward; returns the record."""
    inputs = draw(case, torch.Generator(case.device).manual_seed(0))

    def backward(out):
        return torch.autograd.grad(out, inputs.operands, inputs.grad_out)

    def peak_of(action, *arguments: object):
        torch.cuda.reset_peak_memory_stats()
        result = action(*arguments)
        torch.cuda.synchronize()
        return result, torch.cuda.max_memory_allocated() - base

    backward(call(*inputs.operands))  # compiles, and allocates workspaces that stay
    base = torch.cuda.memory_allocated()
    _, control_bytes = peak_of(partial(torch.empty, _CONTROL_BYTES, dtype=torch.uint8, device=case.device))
    _require_control(control_bytes)
    out, forward_peak = peak_of(call, *inputs.operands)
    grads, backward_peak = peak_of(backward, out)
    sizes = [sum(storages(tensors).values()) for tensors in (inputs.tensors, [out], grads)]
    del out, grads
    saved = saved_bytes(call, inputs)
    found = _Bytes(sizes[0], sizes[1], saved, sizes[2], forward_peak, backward_peak, control_bytes)
    return _record(case, name, source, found, GPU_METHOD)


# On the CPU.


def _resident(field: str) -> int:
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError as error:
        raise NotMeasurableError(f"memory: expected a Linux with /proc/self/status, got {error}") from error
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    if found is None:
        raise NotMeasurableError(f"memory: expected {field} in /proc/self/status, got none")
    return 1024 * int(found[1])


def _return_freed_pages() -> None:
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc; other C libraries return large blocks at once
        libc.malloc_trim(0)


class PeakMeter:
    """Measures the peak resident size of functions, above the resident size when the object was created."""

    def __init__(self) -> None:
        _return_freed_pages()
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


def control() -> int:
    """Measures an allocation of known size by `PeakMeter`, and returns the measured bytes."""

    def allocate() -> None:
        torch.ones(_CONTROL_BYTES, dtype=torch.uint8)

    return _require_control(PeakMeter().run(allocate)[1])


def measure_here(case: Case, name: str) -> records.MemoryRecord:
    """Measures a case in this process, which should have done nothing else before."""
    if name == COMPILED:
        raise NotMeasurableError(
            f"implementation: expected one that runs no compiler, got {COMPILED!r}: it compiles in the measured "
            "process, so the compiler's memory would count"
        )
    implementation = IMPLEMENTATIONS[name]
    if reasons := implementation.unsupported(case):
        raise NotMeasurableError(f"implementation: expected one that supports {case}, got {name!r}: {reasons[0]}")
    with torch.set_grad_enabled(case.mode != FORWARD):
        return _record(case, name, records.origin(), _measure_bytes(case, implementation.build), CPU_METHOD)


def _measure_bytes(case: Case, build: Callable[[Case], Call]) -> _Bytes:
    call = build(case)
    generator = torch.Generator().manual_seed(0)

    def forward(inputs: Inputs) -> torch.Tensor:
        return call(*inputs.operands)

    def backward(out: torch.Tensor, inputs: Inputs) -> list[torch.Tensor]:
        # Softmax attention alone does not use the context and the gate.
        grads = torch.autograd.grad(out, inputs.operands, inputs.grad_out, allow_unused=True)
        return [grad for grad in grads if grad is not None]

    warm_up = replace(case, shape=Shape(1, 1, 16, case.shape.head_dim))
    small = draw(warm_up, generator)
    out = build(warm_up)(*small.operands)
    if case.mode != FORWARD:
        backward(out, small)
    del small, out
    control_bytes = control()

    inputs = draw(case, generator)
    meter = PeakMeter()
    out, forward_peak = meter.run(forward, inputs)
    grads, backward_peak = [], 0
    if case.mode != FORWARD:
        grads, backward_peak = meter.run(backward, out, inputs)
    sizes = [sum(storages(tensors).values()) for tensors in (inputs.tensors, [out], grads)]
    del out, grads
    saved = saved_bytes(call, inputs) if case.mode != FORWARD else 0
    return _Bytes(sizes[0], sizes[1], saved, sizes[2], forward_peak, backward_peak, control_bytes)


def measure_in_process(case: Case, name: str, threads: int) -> records.MemoryRecord:
    """Measures peak memory on the CPU in a new process, which has done nothing else before."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        return pool.submit(measure_here, case, name).result()

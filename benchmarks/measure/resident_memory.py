"""Peak memory of a forward and its backward on the CPU, of a process that has done nothing else.

What is asked is the memory beyond inputs, output, saved tensors and gradients, and what could spoil the answer is met
as follows.

- The kernel counts the peak (VmHWM, set back to the present through /proc/self/clear_refs), so nothing is missed
  between samples.
- Forward and backward are measured each by itself. In one measurement the gradients, which do not exist yet in the
  forward, would be subtracted from the forward's peak and hide as much scratch.
- Libraries and thread pools are loaded by a call on 16 keys, whose own scratch is negligible: a call of the measured
  size would leave its buffers behind and hide them. Freed pages go back to the system before the baseline is read.
- Saved tensors are counted in a second run, so that counting does not disturb the first.
- A known allocation of 64 MB is measured in the same way; if it is not found to within 4 MB, nothing is reported.
"""

import ctypes
import gc
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks import rows
from benchmarks.cases.case import FORWARD, Case, Shape
from benchmarks.cases.inputs import Inputs, draw
from benchmarks.measure.memory_account import MB, Account, NotMeasurableError, row, saved_bytes, storages
from benchmarks.providers.names import COMPILED
from benchmarks.providers.registry import Provider, chosen

METHOD = (
    "fresh process, warm-up on 16 keys, freed pages returned; peak resident size (VmHWM, reset through "
    "/proc/self/clear_refs) minus resident size before the forward, minus output and saved tensors, and in "
    "the backward minus gradients; the larger of forward and backward"
)
_CONTROL_BYTES = 64 * MB
_CONTROL_SLACK = 4 * MB
_CLEAR_REFS = Path("/proc/self/clear_refs")


def _resident(field: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)[1])


def _return_freed_pages() -> None:
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc; other C libraries do not hold on to large blocks
        libc.malloc_trim(0)


class PeakMeter:
    """Peak resident size of the functions it runs, above the resident size at its making."""

    def __init__(self) -> None:
        _return_freed_pages()
        self.baseline = _resident("VmRSS")

    def run(self, action: Callable[..., object], *arguments: object) -> tuple[object, int]:
        """The action's result, and the peak during it, in bytes above the baseline.

        Raises:
            NotMeasurableError: the peak cannot be set back.
        """
        try:
            _CLEAR_REFS.write_text("5", encoding="ascii")
        except OSError as error:
            raise NotMeasurableError(
                f"{_CLEAR_REFS} cannot be written ({error}); it takes a Linux that lets a process do that"
            ) from error
        result = action(*arguments)
        return result, _resident("VmHWM") - self.baseline


def control() -> int:
    """Bytes that the method finds for a known allocation, allocated, filled and freed.

    Raises:
        NotMeasurableError: it does not find them.
    """

    def allocate() -> None:
        torch.ones(_CONTROL_BYTES, dtype=torch.uint8)

    _, found = PeakMeter().run(allocate)
    if abs(found - _CONTROL_BYTES) > _CONTROL_SLACK:
        raise NotMeasurableError(
            f"a known allocation of {_CONTROL_BYTES / MB:.0f} MB was measured as {found / MB:.1f} MB"
        )
    return found


def measure(case: Case, provider_name: str) -> rows.MemoryRow:
    """Measures a case with a provider, in this process, which should have done nothing else before.

    Raises:
        NotMeasurableError: this system does not allow it, or the provider is compiled as it runs.
        RuntimeError, ValueError: the provider does not take the case, or there is none of that name.
    """
    if provider_name == COMPILED:
        raise NotMeasurableError(f"{COMPILED} compiles in the process that is measured, whose memory that would count")
    source = rows.origin()
    provider = chosen([provider_name], case)[provider_name]
    with torch.set_grad_enabled(case.mode != FORWARD):
        return row(case, provider_name, source, _account(case, provider), METHOD)


def _account(case: Case, provider: Provider) -> Account:
    call = provider.build(case)
    generator = torch.Generator().manual_seed(0)

    def forward(inputs: Inputs) -> torch.Tensor:
        return call(*inputs.operands)

    def backward(out: torch.Tensor, inputs: Inputs) -> list[torch.Tensor]:
        # The floor has no use for the context and lambda.
        grads = torch.autograd.grad(out, inputs.operands, inputs.grad_out, allow_unused=True)
        return [grad for grad in grads if grad is not None]

    warm_up = replace(case, shape=Shape(1, 1, 16, case.shape.head_dim))
    small = draw(warm_up, generator)
    out = provider.build(warm_up)(*small.operands)
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
    sizes = [sum(storages(tensors).values()) for tensors in (inputs, [out], grads)]
    del out, grads
    saved = saved_bytes(call, inputs) if case.mode != FORWARD else 0
    return Account(sizes[0], sizes[1], saved, sizes[2], forward_peak, backward_peak, control_bytes)

"""Peak memory of a forward and its backward: `python -m benchmarks.memory --shape 1,12,8192,64 --provider cpu`.

Run it as a fresh process; it prints one row. What is asked is the memory beyond inputs, output, saved tensors
and gradients, and what could spoil the answer is met as follows.

- The kernel counts the peak (VmHWM, set back to the present through /proc/self/clear_refs), so nothing is
  missed between samples.
- Forward and backward are measured each by itself. In one measurement the gradients, which do not exist yet
  in the forward, would be subtracted from the forward's peak and hide as much scratch.
- Libraries and thread pools are loaded by a call on 16 keys, whose own scratch is negligible: a call of the
  measured size would leave its buffers behind and hide them. Freed pages go back to the system before the
  baseline is read.
- Saved tensors are counted in a second run, so that counting does not disturb the first.
- A known allocation of 64 MB is measured in the same way; if it is not found to within 4 MB, nothing is
  reported.
"""

import argparse
import ctypes
import gc
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks import rows
from benchmarks.providers import COMPILED, PROVIDERS, Call, Provider, chosen
from benchmarks.shapes import (
    DTYPES,
    FORWARD,
    FORWARD_BACKWARD,
    FULL,
    LENGTHS,
    MEMORY_SHAPE,
    Case,
    Inputs,
    Shape,
    draw,
)

METHOD = (
    "fresh process, warm-up on 16 keys, freed pages returned; peak resident size (VmHWM, reset through "
    "/proc/self/clear_refs) minus resident size before the forward, minus output and saved tensors, and in "
    "the backward minus gradients; the larger of forward and backward"
)
_MB = 10**6
_CONTROL_BYTES = 64 * _MB
_CONTROL_SLACK = 4 * _MB
_CLEAR_REFS = Path("/proc/self/clear_refs")


class NotMeasurableError(RuntimeError):
    """This system does not let a process read its own peak."""


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
            f"a known allocation of {_CONTROL_BYTES / _MB:.0f} MB was measured as {found / _MB:.1f} MB"
        )
    return found


def storages(tensors) -> dict[int, int]:
    """Bytes of each distinct storage, by address."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def saved_bytes(call: Call, inputs: Inputs) -> int:
    """Bytes that autograd keeps for the backward, beside the inputs and the output."""
    kept: list[torch.Tensor] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        kept.append(t.detach())  # keeps the storage alive, so that no address is met twice
        return t.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = call(*inputs.operands)
    others = storages([*inputs, out])
    return sum(size for address, size in storages(kept).items() if address not in others)


@dataclass(frozen=True)
class Account:
    """Bytes of one forward and backward; the peaks above what was there before the forward."""

    inputs: int
    output: int
    saved: int
    gradients: int
    forward_peak: int
    backward_peak: int
    control: int


def row(case: Case, name: str, source: rows.Origin, account: Account, method: str) -> rows.MemoryRow:
    """The row of an account: what a call rightly keeps is subtracted from its peaks."""
    forward_extra = account.forward_peak - account.output - account.saved
    backward_extra = 0
    if case.mode != FORWARD:
        backward_extra = account.backward_peak - account.output - account.saved - account.gradients
    return rows.MemoryRow(
        origin=source,
        **rows.case_fields(case),
        provider=name,
        input_mb=rows.figure(account.inputs / _MB),
        output_mb=rows.figure(account.output / _MB),
        saved_mb=rows.figure(account.saved / _MB),
        gradient_mb=rows.figure(account.gradients / _MB),
        forward_extra_mb=rows.figure(forward_extra / _MB),
        backward_extra_mb=rows.figure(backward_extra / _MB),
        extra_mb=rows.figure(max(forward_extra, backward_extra) / _MB),
        control_mb=rows.figure(account.control / _MB),
        method=method,
    )


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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory", description="Peak memory of a forward and its backward, as a row."
    )
    parser.add_argument("--shape", type=Shape.parse, default=MEMORY_SHAPE, metavar="B,H,L,D")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--mode", choices=(FORWARD, FORWARD_BACKWARD), default=FORWARD_BACKWARD)
    parser.add_argument("--lengths", choices=LENGTHS, default=FULL)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--provider", choices=PROVIDERS, required=True)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    case = Case(options.shape, options.dtype, options.mode, options.dropout, lengths=options.lengths)
    try:
        print(rows.to_line(measure(case, options.provider)))
    except RuntimeError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

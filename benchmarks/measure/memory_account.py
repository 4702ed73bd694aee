"""What a call keeps and what it needs beside that, wherever its memory is counted."""

from dataclasses import dataclass

import torch

from benchmarks import rows
from benchmarks.cases.case import FORWARD, Case
from benchmarks.cases.inputs import Inputs
from benchmarks.providers.registry import Call

MB = 10**6


class NotMeasurableError(RuntimeError):
    """This system does not let a process read its own peak."""


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
        input_mb=rows.figure(account.inputs / MB),
        output_mb=rows.figure(account.output / MB),
        saved_mb=rows.figure(account.saved / MB),
        gradient_mb=rows.figure(account.gradients / MB),
        forward_extra_mb=rows.figure(forward_extra / MB),
        backward_extra_mb=rows.figure(backward_extra / MB),
        extra_mb=rows.figure(max(forward_extra, backward_extra) / MB),
        control_mb=rows.figure(account.control / MB),
        method=method,
    )

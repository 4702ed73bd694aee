"""Checks results before they are timed: parity of the backends, and each implementation on the timed inputs."""

import torch

from benchmarks.cases import FORWARD, LAMBDA, PACKED, VECTORS, Case, Inputs
from benchmarks.implementations.baselines import eager_attention
from benchmarks.implementations.registry import EAGER, Call
from qacg_kernels.testing import judge, parity_report

_NAMES = ("out", *(f"grad {name}" for name in Inputs._fields[:5]), "grad gate")


class ParityError(RuntimeError):
    """The results of an implementation break the error rule (`qacg_kernels.testing.judge`); its time is meaningless."""


def require_parity() -> int:
    """Runs the package's parity report for all available backends on the CPU; returns the number of its checks."""
    checks = list(parity_report())
    failed = [
        f"{check.backend} {check.dtype}, {check.case}: {check.tensor} has error {check.error:.3g}, "
        f"allowed {check.budget:.3g}"
        for check in checks
        if not check.ok
    ]
    if failed or not checks:
        raise ParityError("\n".join(failed) or "parity: expected at least one check, got none")
    return len(checks)


def require_agreement(calls: dict[str, Call], case: Case, inputs: Inputs) -> None:
    """Checks calls with `disagreements`."""
    wrong = disagreements(calls, case, inputs)
    if wrong:
        raise ParityError("\n".join(wrong.values()))


def disagreements(calls: dict[str, Call], case: Case, inputs: Inputs) -> dict[str, str]:
    """Finds implementations whose results break the package's error rule, or whose call raises.

    The output and gradients are checked for the first head of the first sequence and for the last head of the last
    sequence. Three things are not checked: EAGER; gradients of gate vectors, because they are sums over all heads; and
    calls with dropout, because the implementations drop different entries.
    """
    if case.dropout:
        return {}
    corners = [(0, 0), (-1, -1)]
    exact = [_run(eager_attention, case, _corner(inputs, case, at, torch.float64)) for at in corners]
    eager = [_run(eager_attention, case, _corner(inputs, case, at, inputs.query.dtype)) for at in corners]
    found = {}
    for name, call in calls.items():
        if name == EAGER:
            continue
        try:
            wrong = _first_wrong(_run(call, case, inputs), case, list(zip(corners, eager, exact)))
        except Exception as error:  # an operand without a gradient, or an error of a kernel's compiler
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            found[name] = f"{name}, {case}: {wrong}"
    return found


def _first_wrong(got: list[torch.Tensor], case: Case, corners: list[tuple]) -> str | None:
    checked = _NAMES[: len(got)] if case.gate == LAMBDA else _NAMES[: min(6, len(got))]
    for index, tensor in enumerate(checked):
        for at, eager, truth in corners:
            result = judge(tensor, _one_head(got[index], case, at), eager[index][0, 0], truth[index][0, 0])
            if not result.ok:
                return (
                    f"{tensor} has error {result.error:.3g}, allowed {result.budget:.3g}; "
                    f"in root mean square {result.rms_error:.3g}, allowed {result.rms_budget:.3g}"
                )
    return None


def _one_head(t: torch.Tensor, case: Case, at: tuple[int, int]) -> torch.Tensor:
    """The part of a tensor that belongs to one sequence and head, without padding."""
    sequence, head = at
    length = case.sequence_lengths[sequence]
    if case.lengths == PACKED:
        first = sum(case.sequence_lengths[:sequence])
        return t[first : first + length, head]
    return t[sequence, head] if case.keys else t[sequence, head, :length]


def _corner(inputs: Inputs, case: Case, at: tuple[int, int], dtype: torch.dtype) -> Inputs:
    """The inputs of a call with only one sequence and head, in another dtype."""
    requires_grad = inputs.query.requires_grad

    def part(t: torch.Tensor) -> torch.Tensor:
        return _one_head(t.detach(), case, at).to(dtype)[None, None]

    def whole(t: torch.Tensor) -> torch.Tensor:
        return t.detach().to(dtype)

    wide = [part(t).requires_grad_(requires_grad) for t in inputs[:5]]
    gate = [(whole if case.gate == VECTORS else part)(t).requires_grad_(requires_grad) for t in inputs.gate]
    return Inputs(*wide, tuple(gate), part(inputs.grad_out))


def _run(call: Call, case: Case, inputs: Inputs) -> list[torch.Tensor]:
    if case.mode == FORWARD:
        with torch.no_grad():
            return [call(*inputs.operands)]
    out = call(*inputs.operands)
    return [out.detach(), *torch.autograd.grad(out, inputs.operands, inputs.grad_out)]

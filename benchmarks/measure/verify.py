"""No figure for a wrong answer: parity of the backends, and of each provider on the very inputs timed."""

from collections.abc import Iterable

import torch

from benchmarks.cases.case import FORWARD, PACKED, Case
from benchmarks.cases.inputs import Inputs
from benchmarks.providers.eager import eager_attention
from benchmarks.providers.names import EAGER
from benchmarks.providers.registry import Call
from qacg_kernels.testing import judge, parity_report

_NAMES = ("out", *(f"grad {name}" for name in Inputs._fields[:6]))


class ParityError(RuntimeError):
    """A provider does not compute quasi-attention; its time means nothing."""


def require_parity(device: str = "cpu", backends: Iterable[str] | None = None) -> int:
    """Runs the package's parity report, of all backends unless some are named, and returns its number of rows.

    Raises:
        ParityError: a row fails.
    """
    rows = list(parity_report(backends, device))
    failed = [
        f"{r.backend} {r.dtype}, {r.case}: {r.tensor} is off by {r.error:.3g}, budget {r.budget:.3g}"
        for r in rows
        if not r.ok
    ]
    if failed or not rows:
        raise ParityError("\n".join(failed) or "the parity report has no rows")
    return len(rows)


def require_agreement(calls: dict[str, Call], case: Case, inputs: Inputs) -> None:
    """Raises unless there are no disagreements.

    Raises:
        ParityError: a provider breaks the rule; the message names it, the tensor, error and budget.
    """
    wrong = disagreements(calls, case, inputs)
    if wrong:
        raise ParityError("\n".join(wrong.values()))


def disagreements(calls: dict[str, Call], case: Case, inputs: Inputs) -> dict[str, str]:
    """What the first wrong tensor of each wrong provider is off by, by the package's error rule.

    Judged are output and gradients, for the first and the last (sequence, head). With dropout the providers draw
    different cells and nothing can be compared; there the parity report alone answers for them. One that raises is
    wrong too.
    """
    if case.dropout:
        return {}
    corners = [(0, 0), (-1, -1)]
    exact = [_run(eager_attention, case, _corner(inputs, case, at, torch.float64)) for at in corners]
    of_eager = [_run(eager_attention, case, _corner(inputs, case, at, inputs.query.dtype)) for at in corners]
    found = {}
    for name, call in calls.items():
        if name == EAGER:
            continue
        try:
            wrong = _first_wrong(_run(call, case, inputs), case, list(zip(corners, of_eager, exact)))
        except Exception as error:  # such as an operand that its output does not depend on, or a kernel's compiler
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            found[name] = f"{name}, {case}: {wrong}"
    return found


def _first_wrong(got: list[torch.Tensor], case: Case, corners: list[tuple]) -> str | None:
    for index, tensor in enumerate(_NAMES[: len(got)]):
        for at, eager, truth in corners:
            v = judge(tensor, _rows(got[index], case, at), eager[index][0, 0], truth[index][0, 0])
            if not v.ok:
                return (
                    f"{tensor} is off by {v.error:.3g}, budget {v.budget:.3g}; "
                    f"in root mean square {v.rms_error:.3g}, budget {v.rms_budget:.3g}"
                )
    return None


def _rows(t: torch.Tensor, case: Case, at: tuple[int, int]) -> torch.Tensor:
    """The rows of one sequence and head, without padding."""
    sequence, head = at
    length = case.sequence_lengths[sequence]
    if case.lengths == PACKED:
        first = sum(case.sequence_lengths[:sequence])
        return t[first : first + length, head]
    return t[sequence, head] if case.keys else t[sequence, head, :length]


def _corner(inputs: Inputs, case: Case, at: tuple[int, int], dtype: torch.dtype) -> Inputs:
    """One sequence and head as a call of its own."""
    parts = [_rows(t.detach(), case, at).to(dtype)[None, None] for t in inputs]
    needs = inputs.query.requires_grad
    return Inputs(*(t.requires_grad_(needs) for t in parts[:6]), parts[6])


def _run(call: Call, case: Case, inputs: Inputs) -> list[torch.Tensor]:
    if case.mode == FORWARD:
        with torch.no_grad():
            return [call(*inputs.operands)]
    out = call(*inputs.operands)
    return [out.detach(), *torch.autograd.grad(out, inputs.operands, inputs.grad_out)]

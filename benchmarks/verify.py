"""No figure for a wrong answer: parity of the backends, and of each provider on the very inputs timed."""

import torch

from benchmarks.providers import EAGER, Call, eager_attention
from benchmarks.shapes import FORWARD, Case, Inputs
from qacg_kernels.testing import judge, parity_report

_CORNERS = ((0, 0), (-1, -1))
_NAMES = ("out", *(f"grad {name}" for name in Inputs._fields[:6]))


class ParityError(RuntimeError):
    """A provider does not compute quasi-attention; its time means nothing."""


def require_parity() -> int:
    """Runs the package's parity report and returns its number of rows.

    Raises:
        ParityError: a row fails.
    """
    rows = list(parity_report())
    failed = [
        f"{r.backend} {r.dtype}, {r.case}: {r.tensor} is off by {r.error:.3g}, budget {r.budget:.3g}"
        for r in rows
        if not r.ok
    ]
    if failed or not rows:
        raise ParityError("\n".join(failed) or "the parity report has no rows")
    return len(rows)


def require_agreement(calls: dict[str, Call], case: Case, inputs: Inputs) -> None:
    """Judges output and gradients by the package's error rule, for the first and the last (batch, head).

    With dropout the providers draw different cells and nothing can be compared; there the parity report
    alone answers for them.

    Raises:
        ParityError: a provider breaks the rule; the message names it, the tensor, error and budget.
    """
    if case.dropout:
        return
    exact = [_run(eager_attention, case, _slice(inputs, at)) for at in _CORNERS]
    of_eager = _run(eager_attention, case, inputs)
    for name, call in calls.items():
        if name == EAGER:
            continue
        got = _run(call, case, inputs)
        for index, tensor in enumerate(_NAMES[: len(got)]):
            for at, truth in zip(_CORNERS, exact):
                v = judge(tensor, got[index][at], of_eager[index][at], truth[index][0, 0])
                if not v.ok:
                    raise ParityError(
                        f"{name}, {case}: {tensor} is off by {v.error:.3g}, budget {v.budget:.3g}; "
                        f"in root mean square {v.rms_error:.3g}, budget {v.rms_budget:.3g}"
                    )


def _slice(inputs: Inputs, at: tuple[int, int]) -> Inputs:
    batch, head = at
    parts = [t.detach()[batch, head].double()[None, None] for t in inputs]
    needs = inputs.query.requires_grad
    return Inputs(*(t.requires_grad_(needs) for t in parts[:6]), parts[6])


def _run(call: Call, case: Case, inputs: Inputs) -> list[torch.Tensor]:
    if case.mode == FORWARD:
        with torch.no_grad():
            return [call(*inputs.operands)]
    out = call(*inputs.operands)
    return [out.detach(), *torch.autograd.grad(out, inputs.operands, inputs.grad_out)]

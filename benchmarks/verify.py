"""No figure for a wrong answer: parity of the backends, and of each provider on the very inputs timed."""

import torch

from benchmarks.providers import EAGER, Call, eager_attention
from benchmarks.shapes import FORWARD, Case, Inputs

_NAMES = ("output", "query", "key", "value", "context_query", "context_key", "gate_lambda")


class ParityError(RuntimeError):
    """A provider does not compute quasi-attention; its time means nothing."""


def require_parity() -> int:
    """Runs the package's parity report and returns its number of rows.

    Raises:
        ParityError: a row fails.
    """
    from qacg_kernels.testing import parity_report

    rows = list(parity_report())
    failed = [row for row in rows if not row.ok]
    if failed or not rows:
        raise ParityError("\n".join(map(str, failed)) or "the parity report has no rows")
    return len(rows)


def require_agreement(calls: dict[str, Call], case: Case, inputs: Inputs) -> None:
    """Compares output and gradients with float64, for the first and the last (batch, head) of the inputs.

    A provider may err twice as much as eager does in the same type, plus two units in the last place of the
    largest element. With dropout the providers draw different cells and nothing can be compared; there the
    parity report alone answers for them.

    Raises:
        ParityError: a provider is further off; the message names it, the tensor and both errors.
    """
    if case.dropout:
        return
    wanted = [_run(eager_attention, case, _slice(inputs, at)) for at in _CORNERS]
    budgets = None
    for name, call in sorted(calls.items(), key=lambda item: item[0] != EAGER):
        got = _run(call, case, inputs)
        errors = [
            max(_error(tensor[at], truth[index]) for at, truth in zip(_CORNERS, wanted))
            for index, tensor in enumerate(got)
        ]
        if budgets is None:
            eps = torch.finfo(inputs.query.dtype).eps
            largest = [max(truth[i].abs().max().item() for truth in wanted) for i in range(len(got))]
            budgets = [2 * error + 2 * eps * size for error, size in zip(errors, largest)]
        for tensor_name, error, budget in zip(_NAMES, errors, budgets):
            if not error <= budget:  # also when the error is NaN
                what = tensor_name if tensor_name == "output" else f"gradient of {tensor_name}"
                raise ParityError(f"{name}, {case}: {what} is off by {error:.3g}, budget {budget:.3g}")


_CORNERS = ((0, 0), (-1, -1))


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


def _error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return (got.double() - wanted[0, 0]).abs().max().item()

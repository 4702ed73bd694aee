"""Compares backends with eager PyTorch by the error rule, for their tests; the submodule `inputs` makes the tensors."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from qacg_kernels.backends.dispatch import NAMES, available_backends, backend_of, wrong_head_dim
from qacg_kernels.backends.reference import dense_rows, sequences
from qacg_kernels.call.equations import Position, cleared, maps
from qacg_kernels.call.problem import Problem
from qacg_kernels.call.validation import check_choice
from qacg_kernels.functional import explain, problem_of, quasi_attention, quasi_attention_varlen
from qacg_kernels.operators.error_rule import judge, squared_scales
from qacg_kernels.testing.inputs import Case, Inputs, make_inputs


def _dense_calls(inputs: Inputs, tensors: dict[str, Tensor]) -> Iterator[tuple[slice, Problem, Position]]:
    """Yields the case as dense calls, as `reference.sequences` does: one per packed sequence, else a single call."""
    problem = problem_of(*inputs.arguments(tensors), **inputs.options)
    return sequences(problem) if problem.packed else iter([(slice(None), problem, Position())])


def _repack(parts: list[Tensor], like: Tensor) -> Tensor:
    """Joins results of `_dense_calls` to a tensor with the shape of `like`."""
    if len(parts) == 1 and parts[0].dim() == like.dim():
        return parts[0]
    return torch.cat([like[:0], *(t[0].transpose(0, 1) for t in parts)])


Attend = Callable[[Inputs, dict[str, Tensor]], tuple[Tensor, Tensor | None]]


def through_eager(inputs: Inputs, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Returns the output and lambda of a case by the equations, in the dtype of the tensors; pass it to `evaluate`.

    Lambda is None unless `Case.returns_lambda`.
    """
    outs, lams = [], []
    for _, problem, position in _dense_calls(inputs, tensors):
        found = maps(problem, position)
        outs.append(found.combined() @ cleared(problem.value, problem.key_lengths))
        if inputs.case.returns_lambda:
            lams.append(found.gate[..., 0])
    out = _repack(outs, tensors["query"])
    return out, _repack(lams, tensors["query"][..., 0]) if lams else None


def through_backend(backend: str) -> Attend:
    """Returns a function that runs a case with a backend of the package; pass it to `evaluate`.

    Example:
        >>> from qacg_kernels.testing.inputs import Case, make_inputs
        >>> results = evaluate(make_inputs(Case("example", queries=5)), through_backend("reference"))
        >>> "grad query" in results
        True
    """

    def attend(inputs: Inputs, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        call = quasi_attention if inputs.case.sequences is None else quasi_attention_varlen
        returns_lambda = inputs.case.returns_lambda
        result = call(*inputs.arguments(tensors), **inputs.options, backend=backend, return_lambda=returns_lambda)
        return result if returns_lambda else (result, None)

    return attend


def evaluate(inputs: Inputs, attend: Attend) -> dict[str, Tensor]:
    """Runs a case forward and backward by `through_eager`, or by a result of `through_backend`.

    Returns:
        Tensors by name: "out"; "lambda" if `Case.returns_lambda`; and "grad NAME" for every tensor of the case.
    """
    leaves = {name: t.detach().requires_grad_() for name, t in inputs.tensors.items()}
    out, lam = attend(inputs, leaves)
    results = {"out": out.detach()}
    outputs, upstream = [out], [inputs.grad_out]
    if lam is not None:
        results["lambda"] = lam.detach()
        if inputs.grad_lambda is not None:
            outputs, upstream = [out, lam], [inputs.grad_out, inputs.grad_lambda]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), upstream, allow_unused=True, materialize_grads=True)
    return results | {f"grad {name}": g for name, g in zip(leaves, gradients)}


def evaluate_exactly(inputs: Inputs) -> dict[str, Tensor]:
    """Returns the results of `evaluate` as eager PyTorch computes them in float64 from the values of the inputs."""
    return evaluate(inputs.to(torch.float64), through_eager)


def rounding_scales(inputs: Inputs) -> dict[str, Tensor]:
    """Returns the rounding scale of every result of `evaluate`, float64: the root of `error_rule.squared_scales`.

    For a case with constant inputs the root is multiplied by the larger of L and S.
    """
    case, wide = inputs.case, inputs.to(torch.float64)
    through = wide.grad_lambda
    names = ["out", *(f"grad {name}" for name in wide.tensors), *(["lambda"] if case.returns_lambda else [])]
    rows: dict[str, list[Tensor]] = {}
    squares: dict[str, Tensor] = {}
    for tokens, problem, position in _dense_calls(wide, wide.tensors):
        upstream = [wide.grad_out]
        if through is not None:
            upstream += [case.beta * through, case.gamma * through]
        if case.sequences is not None:
            upstream = [dense_rows(t, tokens) for t in upstream]
        found = squared_scales(maps(problem, position), problem, *upstream)
        for name in names:
            if name.startswith("grad gate."):
                squares[name] = squares.get(name, torch.zeros_like(found[name])) + found[name]
            elif name in found:
                rows.setdefault(name, []).append(found[name])
    for name, parts in rows.items():
        like = wide.tensors["query"]
        squares[name] = _repack(parts, like[..., 0] if name in ("lambda", "grad lambda") else like)
    # With constant inputs all terms of a row have the same error, so errors add up, over two nested sums.
    longest = max(case.queries, case.key_count) if case.constant else 1
    return {name: longest * t.sqrt() for name, t in squares.items()}


def assert_within_budget(
    name: str,
    got: Tensor,
    eager: Tensor,
    exact: Tensor,
    scale: Tensor | None = None,
    dtype: torch.dtype | None = None,
    *,
    where: str = "",
) -> None:
    """Raises AssertionError, which begins with `where`, if `judge` finds a tensor outside of its budget."""
    verdict = judge(name, got, eager, exact, scale, dtype)
    if verdict.ok:
        return
    at = verdict.worst
    raise AssertionError(
        f"{where + ': ' if where else ''}{name} is outside its error budget, relative to the size of the summed terms: "
        f"largest error {verdict.error:.3g} (budget {verdict.budget:.3g}), rms error {verdict.rms_error:.3g} (budget "
        f"{verdict.rms_budget:.3g}); worst at {at}: expected {exact[at].item():.9g}, got {got[at].item():.9g}, eager "
        f"{eager[at].item():.9g}"
    )


def supported_dtypes(backend: str, device: torch.device | str = "cpu") -> tuple[torch.dtype, ...]:
    """Returns the float dtypes in which a backend supports a plain call on `device`; () if either is unavailable.

    Their order is float64, float32, bfloat16, float16.
    """
    check_choice("backend", backend, NAMES)
    device, found = torch.device(device), []
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError):  # torch raises either for a device that its build or this machine lacks
        return ()
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        inputs = make_inputs(Case("probe", batch=1, heads=1, queries=2), dtype, device)
        with contextlib.suppress(RuntimeError):  # `explain` raises it if the backend does not support the call
            explain(*inputs.arguments(), **inputs.options, backend=backend)
            found.append(dtype)
    return tuple(found)


class ParityRow(NamedTuple):
    """The error rule for one tensor of one case: the largest error and its budget, in units of the rounding scale.

    `ok` also requires that the root mean square error is within its budget.
    """

    backend: str
    dtype: str
    case: str
    tensor: str
    error: float
    budget: float
    ok: bool


PARITY_CASES = (
    Case("gate vectors, padding", queries=111, head_dim=64, gate="shared", bias="shared", mask="minus_10000"),
    Case("long rows, causal", batch=1, queries=600, head_dim=64, is_causal=True, layout="heads_inside"),
    Case("dropout, lengths", queries=63, head_dim=33, gate="per_head", dropout_p=0.1, key_lengths=(40, 63)),
    Case("packed sequences", head_dim=16, sequences=(5, 111, 0, 37), gate="shared", dropout_p=0.2),
)

# Not float64, in which the reference would be compared with an equally exact result.
PARITY_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def parity_report(backends: Iterable[str] | None = None, device: torch.device | str = "cpu") -> list[ParityRow]:
    """Returns a comparison of backends (all available ones when None) with float64 results, one row per tensor.

    The rows are of each case in PARITY_CASES and each of PARITY_DTYPES that a backend supports on `device`. A case
    whose head size a backend does not support has no row.
    """
    rows = []
    names = available_backends() if backends is None else tuple(backends)
    dtypes = {name: supported_dtypes(name, device) for name in names}
    for case in PARITY_CASES:
        for dtype in PARITY_DTYPES:
            inputs = make_inputs(case, dtype, device)
            truth, scales = evaluate_exactly(inputs), rounding_scales(inputs)
            naive = evaluate(inputs, through_eager)
            for backend in names:
                if dtype not in dtypes[backend] or wrong_head_dim(backend_of(backend), case.head_dim):
                    continue
                results = evaluate(inputs, through_backend(backend))
                for tensor, got in results.items():
                    v = judge(tensor, got, naive[tensor], truth[tensor], scales[tensor])
                    short = str(dtype).removeprefix("torch.")
                    rows.append(ParityRow(backend, short, case.name, tensor, v.error, v.budget, v.ok))
    return rows

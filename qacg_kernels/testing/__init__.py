"""Compares backends with eager PyTorch by the error rule, for their tests; the submodule `inputs` makes the tensors."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from qacg_kernels.backends.dispatch import NAMES, available_backends
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
    if problem.packed:
        yield from sequences(problem)
    else:
        yield slice(None), problem, Position()


def _repack(parts: list[Tensor], like: Tensor) -> Tensor:
    """Joins results of `_dense_calls` to a tensor with the shape of `like`."""
    if len(parts) == 1 and parts[0].dim() == like.dim():
        return parts[0]
    return torch.cat([like[:0], *(t[0].transpose(0, 1) for t in parts)])


Attend = Callable[[Inputs, dict[str, Tensor]], tuple[Tensor, Tensor | None]]


def through_eager(inputs: Inputs, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Returns the output and lambda of a case, computed in plain PyTorch; pass this function to `evaluate`.

    It evaluates the equations (`call/equations.py`) in the dtype of the tensors, and materialises every map. Lambda is
    None unless `Case.returns_lambda`.
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

    Args:
        backend: the backend's name.

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
    """Runs a case forward and backward.

    Args:
        inputs: the case.
        attend: `through_eager`, or a result of `through_backend`.

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
    *,
    where: str = "",
) -> None:
    """Checks that a tensor is within the error rule.

    Args:
        name: name of the tensor; the factor of gradients applies if it begins with "grad".
        got: the backend's result.
        eager: eager PyTorch's result in the same dtype.
        exact: the float64 result.
        scale: the rounding scale of each element; the root mean square of `exact` when None.
        where: text for the message, such as the names of case and backend.

    Raises:
        AssertionError: the tensor is outside its budget, or the shapes of `got` and `exact` differ.
    """
    verdict = judge(name, got, eager, exact, scale)
    if verdict.ok:
        return
    at = verdict.worst
    raise AssertionError(
        f"{where + ': ' if where else ''}{name} is outside its error budget: "
        f"largest error {verdict.error:.3g} (budget {verdict.budget:.3g}), "
        f"rms error {verdict.rms_error:.3g} (budget {verdict.rms_budget:.3g}), "
        "relative to the size of the summed terms; "
        f"worst at {at}: expected {exact[at].item():.9g}, got {got[at].item():.9g}, "
        f"eager {eager[at].item():.9g}"
    )


def supported_dtypes(backend: str, device: torch.device | str = "cpu") -> tuple[torch.dtype, ...]:
    """Returns the float dtypes in which a backend supports a plain call on `device`.

    Their order is float64, float32, bfloat16, float16. The result is () if the backend or the device is unavailable.

    Raises:
        ValueError: `backend` is not the name of a backend.
        RuntimeError: torch has no device with the name `device`.
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
    """The result of the error rule for one tensor of one case, with error and budget in units of the rounding scale.

    Attributes:
        backend: the backend's name.
        dtype: dtype of the inputs, such as "float32".
        case: name of the case.
        tensor: name of the tensor, as in `evaluate`.
        error: the largest error of an element.
        budget: the largest error that is allowed.
        ok: whether the tensor passes; its root mean square error must be within its budget too.
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
    """Compares outputs and gradients of backends with float64 results on this machine; takes seconds.

    Args:
        backends: names of backends; all available ones when None. Each runs in the dtypes of PARITY_DTYPES that it
            supports on `device`.
        device: device of the tensors.

    Returns:
        One ParityRow for each tensor of each case, dtype and backend.

    Raises:
        ValueError: a name is not that of a backend.
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
                if dtype not in dtypes[backend]:
                    continue
                results = evaluate(inputs, through_backend(backend))
                for tensor, got in results.items():
                    v = judge(tensor, got, naive[tensor], truth[tensor], scales[tensor])
                    short = str(dtype).removeprefix("torch.")
                    rows.append(ParityRow(backend, short, case.name, tensor, v.error, v.budget, v.ok))
    return rows

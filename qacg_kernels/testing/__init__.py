"""Compares backends with eager PyTorch by the error rule, for their tests; the submodule `inputs` makes the tensors."""

import contextlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from qacg_kernels.backends.dispatch import NAMES, available_backends
from qacg_kernels.call.dropout import keep_scale
from qacg_kernels.call.equations import gate_values
from qacg_kernels.call.gate import GateParameters
from qacg_kernels.call.problem import hides
from qacg_kernels.call.validation import check_choice, dense_problem
from qacg_kernels.functional import explain, keep_mask, quasi_attention, quasi_attention_varlen
from qacg_kernels.operators.error_rule import judge, squared_scales
from qacg_kernels.testing.inputs import Case, Inputs, make_inputs


class _Maps(NamedTuple):
    softmax: Tensor
    sigmoid: Tensor
    gate: Tensor
    query_gate: Tensor | None
    key_gate: Tensor | None


def _split_mask(query, key, attn_mask, key_lengths, is_causal) -> tuple[Tensor | None, Tensor | None]:
    """Combines mask, lengths and causality into a boolean and an additive mask; an absent one is None."""
    parts, additive = [], None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        parts.append(attn_mask)
    elif attn_mask is not None:
        additive, hidden = attn_mask, hides(attn_mask)
        # In a compiled graph always split: reading a value would break the graph, and splitting takes little time
        # there.
        if torch.compiler.is_compiling() or hidden.any():
            parts.append(~hidden)
            additive = attn_mask.masked_fill(hidden, 0.0)
    j = torch.arange(key.shape[2], device=key.device)
    if is_causal:
        parts.append(j <= torch.arange(query.shape[2], device=key.device).unsqueeze(1))
    if key_lengths is not None:
        parts.append(j < key_lengths.view(-1, 1, 1, 1))
    seen = None
    for part in parts:
        seen = part if seen is None else seen & part
    return seen, additive


def _eager_maps(
    query, key, context_query, context_key, gate, *, attn_mask, key_lengths, is_causal, scale, quasi_bias=None, **_
) -> _Maps:
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-1, -2) * scale
    context_scores = context_query @ context_key.transpose(-1, -2) * scale
    seen, additive = _split_mask(query, key, attn_mask, key_lengths, is_causal)
    if additive is not None:
        scores, context_scores = scores + additive, context_scores + additive
    if quasi_bias is not None:
        context_scores = context_scores + quasi_bias.unsqueeze(-1).to(context_scores.dtype)
    if seen is not None:
        # The lowest finite number instead of -inf: a row without a visible key must not become NaN.
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    softmax, sigmoid = torch.softmax(scores, -1), torch.sigmoid(context_scores)
    if seen is not None:
        softmax, sigmoid = softmax.masked_fill(~seen, 0.0), sigmoid.masked_fill(~seen, 0.0)
    if isinstance(gate, Tensor):
        return _Maps(softmax, sigmoid, gate.unsqueeze(-1), None, None)

    query_gate = gate_values(query, context_query, gate.query, gate.context_query, gate.query_bias)
    key_gate = gate_values(key, context_key, gate.key, gate.context_key, gate.key_bias)
    across = key_gate.unsqueeze(-2 if gate.form == "column" else -1)
    lam = 1 - (gate.beta * query_gate.unsqueeze(-1) + gate.gamma * across)
    return _Maps(softmax, sigmoid, lam, query_gate, key_gate)


def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context_query: Tensor,
    context_key: Tensor,
    gate: Tensor | GateParameters,
    *,
    attn_mask: Tensor | None = None,
    key_lengths: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    quasi_scale: float = 1.0,
    quasi_bias: Tensor | None = None,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes quasi-attention in plain PyTorch: materialises every map and computes in the inputs' dtype.

    Args:
        query: (B, H, L, D).
        key: (B, H, S, D).
        value: (B, H, S, D).
        context_query: (B, H, L, D).
        context_key: (B, H, S, D).
        gate: lambda, (B, H, L), or GateParameters.
        attn_mask: None, or a mask that broadcasts to (B, H, L, S). Boolean: True where a key is visible. Floating:
            added to both scores; values at or below half the dtype's lowest number (float32's for float64) hide the
            key.
        key_lengths: None, or (B,) integers; keys at and beyond the length are hidden.
        is_causal: whether query i attends to keys j <= i only.
        dropout_p: probability, in [0, 1), that an attention entry is dropped.
        scale: factor on both scores, 1 / sqrt(D) when None.
        quasi_scale: alpha, the factor on the sigmoid map.
        quasi_bias: None, or a tensor that broadcasts to (B, H, L), added to the context scores of each query.
        keep: boolean keep-mask (B, H, L, S) for dropout, True at the entries that are kept; when None, torch's dropout
            draws it.

    Returns:
        The output (B, H, L, D) and lambda, (B, H, L), or (B, H, L, S) for a column gate.

    Example:
        >>> import torch
        >>> query, key, value, context_query, context_key = torch.randn(5, 2, 4, 10, 16).unbind()
        >>> out, lam = eager_attention(query, key, value, context_query, context_key, torch.rand(2, 4, 10))
        >>> tuple(out.shape), tuple(lam.shape)
        ((2, 4, 10, 16), (2, 4, 10))
    """
    maps = _eager_maps(
        query,
        key,
        context_query,
        context_key,
        gate,
        attn_mask=attn_mask,
        key_lengths=key_lengths,
        is_causal=is_causal,
        scale=scale,
        quasi_bias=quasi_bias,
    )
    attention = maps.softmax + maps.gate * (quasi_scale * maps.sigmoid)
    if keep is not None:
        attention = attention * keep * keep_scale(dropout_p)
    elif dropout_p > 0:
        attention = torch.nn.functional.dropout(attention, dropout_p)
    column = isinstance(gate, GateParameters) and gate.form == "column"
    return attention @ value, maps.gate if column else maps.gate.squeeze(-1)


def _dense_parts(inputs: Inputs, tensors: dict[str, Tensor]) -> Iterable[tuple[Inputs, dict[str, Tensor]]]:
    """Yields the case as dense calls: one call for each sequence of a packed case, else a single call.

    Dropout is given by a keep-mask, the option `keep`, in place of the seed.
    """
    options = dict(inputs.options)
    seed, p = options.pop("dropout_seed", None), inputs.case.dropout_p
    if "cu_seqlens" not in options:
        if p > 0:
            sizes = (*tensors["query"].shape[:3], tensors["key"].shape[2])
            options["keep"] = keep_mask(seed, p, *sizes)
        yield replace(inputs, options=options), tensors
        return
    offsets = options.pop("cu_seqlens").tolist()
    options.pop("max_seqlen")
    for index, (start, stop) in enumerate(itertools.pairwise(offsets)):

        def cut(t: Tensor, start=start, stop=stop) -> Tensor:
            return t[start:stop].transpose(0, 1).unsqueeze(0)

        bias = inputs.options.get("quasi_bias")
        if bias is not None:
            options["quasi_bias"] = cut(bias.expand(offsets[-1], inputs.case.heads))
        if p > 0:
            length = stop - start
            options["keep"] = keep_mask(seed, p, 1, inputs.case.heads, length, length, first_sequence=index)
        part = {name: t if name.startswith("gate.") else cut(t) for name, t in tensors.items()}
        upstream = {"grad_out": cut(inputs.grad_out)}
        if inputs.grad_lambda is not None:
            upstream["grad_lambda"] = cut(inputs.grad_lambda)
        yield replace(inputs, options=dict(options), **upstream), part


def _repack(parts: list[Tensor], like: Tensor) -> Tensor:
    """Joins results of the calls of `_dense_parts` to a tensor with the shape of `like`."""
    if len(parts) == 1 and parts[0].dim() == like.dim():
        return parts[0]
    return torch.cat([like[:0], *(t[0].transpose(0, 1) for t in parts)])


Attend = Callable[[Inputs, dict[str, Tensor]], tuple[Tensor, Tensor | None]]


def through_eager(inputs: Inputs, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Returns the output and lambda of a case, computed by `eager_attention`; pass this function to `evaluate`.

    Lambda is None unless `Case.returns_lambda`.
    """
    results = [eager_attention(*part.arguments(cut), **part.options) for part, cut in _dense_parts(inputs, tensors)]
    out = _repack([out for out, _ in results], tensors["query"])
    if not inputs.case.returns_lambda:
        return out, None
    return out, _repack([lam for _, lam in results], tensors["query"][..., 0])


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
    wide = inputs.to(torch.float64)
    rows: dict[str, list[Tensor]] = {}
    shared: dict[str, Tensor] = {}
    for part, tensors in _dense_parts(wide, wide.tensors):
        for name, square in _squared_scales(part, tensors).items():
            if name.startswith("grad gate."):
                shared[name] = shared.get(name, torch.zeros_like(square)) + square
            else:
                rows.setdefault(name, []).append(square)
    squares = shared
    for name, parts in rows.items():
        like = wide.tensors["query"]
        squares[name] = _repack(parts, like[..., 0] if name in ("lambda", "grad lambda") else like)
    # With constant inputs all terms of a row have the same error, so errors add up, over two nested sums.
    longest = max(inputs.case.queries, inputs.case.key_count) if inputs.case.constant else 1
    return {name: longest * t.sqrt() for name, t in squares.items()}


def _squared_scales(inputs: Inputs, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Squared rounding scales of the results of one of the calls of `_dense_parts`, by name."""
    case, options = inputs.case, dict(attn_mask=None, key_lengths=None, dropout_seed=None) | inputs.options
    kept = options.pop("keep", None)
    maps = _eager_maps(x["query"], x["key"], x["context_query"], x["context_key"], inputs.gate(x), **options)
    through = inputs.grad_lambda
    found = squared_scales(
        maps,
        dense_problem(*inputs.arguments(x), **{"quasi_bias": 0.0, **options}),
        keep=None if kept is None else kept.double() * keep_scale(case.dropout_p),
        grad_out=inputs.grad_out,
        grad_query_gate=None if through is None else case.beta * through,
        grad_key_gate=None if through is None else case.gamma * through,
    )
    names = ["out", *(f"grad {name}" for name in x), *(["lambda"] if case.returns_lambda else [])]
    return {name: found[name] for name in names if name in found}


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
        f"eager {eager[at].item():.9g}; {100 * verdict.bad_share:.3g} % of {got.numel()} elements exceed the budget"
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

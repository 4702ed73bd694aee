"""Quasi-attention as functions: softmax attention plus lambda-gated sigmoid attention on a context."""

import inspect
from numbers import Integral
from typing import Literal, overload

import torch
from torch import Tensor

from qacg_kernels.backends import dispatch
from qacg_kernels.backends.dispatch import Explanation
from qacg_kernels.backends.triton import prepared
from qacg_kernels.call import equations
from qacg_kernels.call.dropout import draw_dropout_seed, keep_mask_at, places_of
from qacg_kernels.call.equations import Position, QuasiBias
from qacg_kernels.call.gate import GateParameters
from qacg_kernels.call.problem import Problem, row_dtype
from qacg_kernels.call.validation import dense_problem, dense_tensor, packed_problem, probability
from qacg_kernels.operators import autograd
from qacg_kernels.utils.torch_internals import functorch_active, has_values, values_readable

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@overload
def quasi_attention(
    query: Tensor, key: Tensor, value: Tensor, context_query: Tensor, context_key: Tensor,
    gate: Tensor | GateParameters, *, attn_mask: Tensor | None = None, key_lengths: Tensor | None = None,
    is_causal: bool = False, dropout_p: float = 0.0, scale: float | None = None, quasi_scale: float = 1.0,
    quasi_bias: QuasiBias = 0.0, backend: str = "auto", dropout_seed: Tensor | None = None,
    return_lambda: Literal[False] = False,
) -> Tensor: ...  # fmt: skip


@overload
def quasi_attention(
    query: Tensor, key: Tensor, value: Tensor, context_query: Tensor, context_key: Tensor,
    gate: Tensor | GateParameters, *, attn_mask: Tensor | None = None, key_lengths: Tensor | None = None,
    is_causal: bool = False, dropout_p: float = 0.0, scale: float | None = None, quasi_scale: float = 1.0,
    quasi_bias: QuasiBias = 0.0, backend: str = "auto", dropout_seed: Tensor | None = None,
    return_lambda: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


@overload
def quasi_attention(
    query: Tensor, key: Tensor, value: Tensor, context_query: Tensor, context_key: Tensor,
    gate: Tensor | GateParameters, *, attn_mask: Tensor | None = None, key_lengths: Tensor | None = None,
    is_causal: bool = False, dropout_p: float = 0.0, scale: float | None = None, quasi_scale: float = 1.0,
    quasi_bias: QuasiBias = 0.0, backend: str = "auto", dropout_seed: Tensor | None = None,
    return_lambda: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip


def quasi_attention(
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
    quasi_bias: QuasiBias = 0.0,
    backend: str = "auto",
    dropout_seed: Tensor | None = None,
    return_lambda: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes quasi-attention: softmax attention plus gated sigmoid attention on a context.

    The output is A @ value, with the attention map A = Z * (softmax(T) + lambda * quasi_scale * sigmoid(Tc)). The
    scores are T = scale * query @ key^T, and the context scores Tc = scale * context_query @ context_key^T + quasi_bias
    (MATH.md, eq. 1 to 8). Z is the dropout factor: 0 for a dropped entry, 1 / (1 - p) for a kept one. The probability p
    is dropout_p, rounded to a multiple of 2^-16. The layout, and the meaning of True in a mask, are those of
    torch.nn.functional.scaled_dot_product_attention.

    Args:
        query: (B, H, L, D), float16, bfloat16, float32 or float64; any strides.
        key: (B, H, S, D); like the next three, with the dtype and device of query.
        value: (B, H, S, D).
        context_query: (B, H, L, D).
        context_key: (B, H, S, D).
        gate: lambda, (B, H, L) in query's dtype, or GateParameters from which the kernel computes lambda.
        attn_mask: up to four dimensions that broadcast to (B, H, L, S); must not require gradients. Boolean: True where
            the key is visible. In query's dtype: added to T and to Tc; values at or below half the dtype's lowest
            number (float32's for float64) hide the key.
        key_lengths: (B,) int32 or int64, S for every sequence when None. Keys and values at and beyond the length are
            not read, except by a row gate from GateParameters: it reads key and context_key at every query's position.
            On a GPU the lengths are not validated.
        is_causal: True or False, whether query i attends to keys j <= i only.
        dropout_p: probability, in [0, 1), that an attention entry is dropped; applied whenever it is positive.
        scale: factor on both scores, 1 / sqrt(D) when None.
        quasi_scale: alpha, the factor on the sigmoid map.
        quasi_bias: number that is added to the context scores, or "-log(keys)": minus the logarithm of the number of
            keys that the query sees, 0 if it sees none. A key with the value m in an additive mask counts exp(m) times.
            Or one bias per query: a tensor that broadcasts to (B, H, L), float32 (float64 for float64 inputs); must not
            require gradients.
        backend: "auto", or a name of available_backends(). The environment variable QACG_BACKEND can replace "auto" by
            a name.
        dropout_seed: int64 scalar tensor on query's device. When None and dropout_p > 0, drawn from torch's generator.
        return_lambda: whether to return lambda too; not possible with a column gate.

    Returns:
        The output (B, H, L, D) in query's dtype, 0 for a query without a visible key. With `return_lambda`, the pair of
        the output and lambda (B, H, L) in query's dtype. Lambda is differentiable. If `gate` is a tensor, lambda is
        `gate` itself.

    Raises:
        TypeError: an argument has the wrong type or dtype, or dropout_seed is not a scalar.
        ValueError: an argument has the wrong device, shape or value, or return_lambda is set with a column gate. Or
            QACG_BACKEND or QACG_SELF_CHECK has an unknown value.
        RuntimeError: the backend named by the argument or by QACG_BACKEND does not support this call (see `explain`).
            With QACG_SELF_CHECK=strict, a kernel fails its check, or "auto" finds no fused kernel for a call on a GPU.
        NotImplementedError: an input has a tangent (forward-mode differentiation). The backward raises this error for a
            second derivative.

    Example:
        >>> import torch
        >>> query, key, value, context_query, context_key = torch.randn(5, 2, 4, 10, 16).unbind()
        >>> lam = torch.rand(2, 4, 10)
        >>> tuple(quasi_attention(query, key, value, context_query, context_key, lam).shape)
        (2, 4, 10, 16)
    """
    if dropout_p.__class__ is not float or dropout_p:
        dropout_seed = _seed(dropout_seed, dropout_p, query)
    if return_lambda is False and backend in prepared.names:
        out = prepared.attend(
            query, key, value, context_query, context_key, gate, attn_mask, key_lengths, None, 0,
            is_causal, dropout_p, scale, quasi_scale, quasi_bias, dropout_seed,
        )  # fmt: skip
        if out is not None:
            return out
    problem = dense_problem(
        query,
        key,
        value,
        context_query,
        context_key,
        gate,
        attn_mask=attn_mask,
        key_lengths=key_lengths,
        is_causal=is_causal,
        dropout_p=dropout_p,
        scale=scale,
        quasi_scale=quasi_scale,
        quasi_bias=quasi_bias,
        dropout_seed=dropout_seed,
    )
    return _run(problem, backend, return_lambda)


@overload
def quasi_attention_varlen(
    query: Tensor, key: Tensor, value: Tensor, context_query: Tensor, context_key: Tensor,
    gate: Tensor | GateParameters, *, cu_seqlens: Tensor, max_seqlen: int,
    is_causal: bool = False, dropout_p: float = 0.0, scale: float | None = None, quasi_scale: float = 1.0,
    quasi_bias: QuasiBias = 0.0, backend: str = "auto", dropout_seed: Tensor | None = None,
    return_lambda: Literal[False] = False,
) -> Tensor: ...  # fmt: skip


@overload
def quasi_attention_varlen(
    query: Tensor, key: Tensor, value: Tensor, context_query: Tensor, context_key: Tensor,
    gate: Tensor | GateParameters, *, cu_seqlens: Tensor, max_seqlen: int,
    is_causal: bool = False, dropout_p: float = 0.0, scale: float | None = None, quasi_scale: float = 1.0,
    quasi_bias: QuasiBias = 0.0, backend: str = "auto", dropout_seed: Tensor | None = None,
    return_lambda: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


@overload
def quasi_attention_varlen(
    query: Tensor, key: Tensor, value: Tensor, context_query: Tensor, context_key: Tensor,
    gate: Tensor | GateParameters, *, cu_seqlens: Tensor, max_seqlen: int,
    is_causal: bool = False, dropout_p: float = 0.0, scale: float | None = None, quasi_scale: float = 1.0,
    quasi_bias: QuasiBias = 0.0, backend: str = "auto", dropout_seed: Tensor | None = None,
    return_lambda: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip


def quasi_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context_query: Tensor,
    context_key: Tensor,
    gate: Tensor | GateParameters,
    *,
    cu_seqlens: Tensor,
    max_seqlen: int,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    quasi_scale: float = 1.0,
    quasi_bias: QuasiBias = 0.0,
    backend: str = "auto",
    dropout_seed: Tensor | None = None,
    return_lambda: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes quasi-attention within each of several packed sequences, without padding (MATH.md, eq. 1 to 8).

    Args:
        query: (T, H, D), the sequences one after another, in float16, bfloat16, float32 or float64; any strides.
        key: (T, H, D); like the next three, with the dtype and device of query.
        value: (T, H, D).
        context_query: (T, H, D).
        context_key: (T, H, D).
        gate: lambda, (T, H) in query's dtype, or GateParameters from which the kernel computes lambda.
        cu_seqlens: (N + 1,) int32 or int64 offsets of the N sequences, from 0 to T, never decreasing. On a GPU the
            values are not validated.
        max_seqlen: length of the longest sequence, or more. On a GPU a smaller value raises no error, and the results
            of longer sequences are undefined.
        is_causal: True or False, whether query i attends to keys j <= i of its sequence only.
        dropout_p: probability, in [0, 1), that an attention entry is dropped; applied whenever it is positive. With the
            same seed, a padded call drops the same entries.
        scale: factor on both scores, 1 / sqrt(D) when None.
        quasi_scale: alpha, the factor on the sigmoid map.
        quasi_bias: number that is added to the context scores, or "-log(keys)": minus the logarithm of the number of
            keys that the query sees. Or one bias per query: a tensor that broadcasts to (T, H), float32 (float64 for
            float64 inputs); must not require gradients.
        backend: "auto", or a name of available_backends(). The environment variable QACG_BACKEND can replace "auto" by
            a name.
        dropout_seed: int64 scalar tensor on query's device. When None and dropout_p > 0, drawn from torch's generator.
        return_lambda: whether to return lambda too; not possible with a column gate.

    Returns:
        The output (T, H, D) in query's dtype. With `return_lambda`, the pair of the output and lambda (T, H) in query's
        dtype. Lambda is differentiable. If `gate` is a tensor, lambda is `gate` itself.

    Raises:
        TypeError: an argument has the wrong type or dtype, or dropout_seed is not a scalar.
        ValueError: an argument has the wrong device, shape or value, or return_lambda is set with a column gate. Or
            QACG_BACKEND or QACG_SELF_CHECK has an unknown value.
        RuntimeError: the backend named by the argument or by QACG_BACKEND does not support this call (see `explain`).
            With QACG_SELF_CHECK=strict, a kernel fails its check, or "auto" finds no fused kernel for a call on a GPU.
        NotImplementedError: an input has a tangent (forward-mode differentiation). The backward raises this error for a
            second derivative.

    Example:
        >>> import torch
        >>> query, key, value, context_query, context_key = torch.randn(5, 9, 4, 16).unbind()
        >>> offsets = torch.tensor([0, 5, 9])  # two sequences, of 5 and 4 tokens
        >>> out = quasi_attention_varlen(
        ...     query, key, value, context_query, context_key, torch.rand(9, 4), cu_seqlens=offsets, max_seqlen=5
        ... )
        >>> tuple(out.shape)
        (9, 4, 16)
    """
    if dropout_p.__class__ is not float or dropout_p:
        dropout_seed = _seed(dropout_seed, dropout_p, query)
    if return_lambda is False and backend in prepared.names:
        out = prepared.attend(
            query, key, value, context_query, context_key, gate, None, None, cu_seqlens, max_seqlen,
            is_causal, dropout_p, scale, quasi_scale, quasi_bias, dropout_seed,
        )  # fmt: skip
        if out is not None:
            return out
    problem = packed_problem(
        query,
        key,
        value,
        context_query,
        context_key,
        gate,
        cu_seqlens=cu_seqlens,
        max_seqlen=max_seqlen,
        is_causal=is_causal,
        dropout_p=dropout_p,
        scale=scale,
        quasi_scale=quasi_scale,
        quasi_bias=quasi_bias,
        dropout_seed=dropout_seed,
    )
    return _run(problem, backend, return_lambda)


def attention_maps(
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
    quasi_bias: QuasiBias = 0.0,
    dropout_seed: Tensor | None = None,
    rows: Tensor | list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes the attention maps, which `quasi_attention` does not return (MATH.md, eq. 1 to 7).

    Runs in plain PyTorch, so the maps can be differentiated any number of times. Every map has B * H * L * S elements;
    with `rows`, B * H * len(rows) * S.

    Args:
        query: (B, H, L, D), float16, bfloat16, float32 or float64; any strides.
        key: (B, H, S, D); like the next three, with the dtype and device of query.
        value: (B, H, S, D); validated, but the maps do not depend on it.
        context_query: (B, H, L, D).
        context_key: (B, H, S, D).
        gate: lambda, (B, H, L) in query's dtype, or GateParameters.
        attn_mask: up to four dimensions that broadcast to (B, H, L, S); must not require gradients. Boolean: True where
            the key is visible. In query's dtype: added to both scores; values at or below half the dtype's lowest
            number (float32's for float64) hide the key.
        key_lengths: (B,) int32 or int64, S for every sequence when None; keys at and beyond the length are hidden.
        is_causal: True or False, whether query i attends to keys j <= i only.
        dropout_p: the dropout_p, in [0, 1), of the call of `quasi_attention` whose maps are computed.
        scale: factor on both scores, 1 / sqrt(D) when None.
        quasi_scale: alpha, the factor on the sigmoid map.
        quasi_bias: bias of the context scores: a number, "-log(keys)", or a tensor that broadcasts to (B, H, L), as in
            `quasi_attention`.
        dropout_seed: int64 scalar tensor on query's device, the seed of that call; required with dropout_p > 0.
        rows: positions of the queries to compute, a list or a 1-D integer tensor in any order; all L when None.

    Returns:
        Four tensors in query's dtype (float32 for 16-bit inputs): the map A after dropout, the softmax map P before
        dropout, the gated sigmoid map lambda * quasi_scale * sigmoid(context scores) before dropout, and lambda. The
        maps are (B, H, L, S). Lambda is (B, H, L), or (B, H, L, S) for a column gate. With `rows`, L is len(rows).

    Raises:
        TypeError: an argument has the wrong type or dtype, or dropout_seed is not a scalar.
        ValueError: an argument has the wrong device, shape or value, or dropout_seed is missing.

    Example:
        >>> import torch
        >>> query, key, value, context_query, context_key = torch.randn(5, 2, 4, 10, 16).unbind()
        >>> a, softmax, gated_quasi, lam = attention_maps(
        ...     query, key, value, context_query, context_key, torch.rand(2, 4, 10), rows=[0, 3]
        ... )
        >>> tuple(a.shape), tuple(lam.shape)
        ((2, 4, 2, 10), (2, 4, 2))
    """
    if probability("dropout_p", dropout_p) > 0 and dropout_seed is None:
        raise ValueError(
            "dropout_seed: expected a seed since dropout_p > 0, got None. Pass the seed of the call of quasi_attention "
            "whose maps you compute, such as a result of draw_dropout_seed"
        )
    p = dense_problem(
        query,
        key,
        value,
        context_query,
        context_key,
        gate,
        attn_mask=attn_mask,
        key_lengths=key_lengths,
        is_causal=is_causal,
        dropout_p=dropout_p,
        scale=scale,
        quasi_scale=quasi_scale,
        quasi_bias=quasi_bias,
        dropout_seed=dropout_seed,
    )
    if rows is not None:
        rows = _checked_rows(rows, query)
        p = p.at_rows(rows)
    m = equations.maps(p.to(row_dtype(query)), Position(rows=rows))
    lam = m.gate if p.column_gate else m.gate[..., 0]
    return m.combined(), m.softmax, m.gate * m.quasi, lam


def _checked_rows(rows: Tensor | list[int], query: Tensor) -> Tensor:
    if not isinstance(rows, Tensor):
        try:
            rows = torch.as_tensor(rows, device="cpu")
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"rows: expected a list or tensor of integers, got {rows!r}") from None
    rows = dense_tensor("rows", rows).to(query.device)
    length = query.shape[2]
    if rows.dim() != 1:
        raise ValueError(f"rows: expected one dimension, got shape {tuple(rows.shape)}")
    if rows.numel() and (rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool):
        raise TypeError(f"rows: expected integers, got dtype {rows.dtype}")
    rows = rows.to(torch.int64)
    if rows.numel() and has_values(rows) and (rows.min() < 0 or rows.max() >= length):
        raise ValueError(f"rows: expected 0 <= position < {length}, got {int(rows.min())} to {int(rows.max())}")
    return rows


def keep_mask(
    seed: Tensor,
    dropout_p: float,
    batch: int,
    heads: int,
    query_length: int,
    key_length: int,
    *,
    rows: Tensor | None = None,
    first_sequence: int = 0,
) -> Tensor:
    """Rebuilds the keep-mask of a call: True where dropout keeps an attention entry.

    Args:
        seed: int64 scalar tensor, the dropout seed of the call.
        dropout_p: drop probability in [0, 1).
        batch: size B.
        heads: size H.
        query_length: size L.
        key_length: size S.
        rows: 1-D integer tensor of the query positions to rebuild; then `query_length` has no effect. All L queries
            when None.
        first_sequence: index, within the call, of the first sequence to rebuild. For one sequence of a packed batch,
            pass its index and batch = 1.

    Returns:
        Boolean tensor (B, H, L or len(rows), S) on the seed's device.

    Raises:
        TypeError: an argument has the wrong type, dtype or shape.
        ValueError: dropout_p is not in [0, 1), or another number is negative. On a GPU, `rows` are not read.

    Example:
        >>> mask = keep_mask(draw_dropout_seed(), dropout_p=0.1, batch=2, heads=4, query_length=10, key_length=12)
        >>> tuple(mask.shape), mask.dtype
        ((2, 4, 10, 12), torch.bool)
    """
    if not isinstance(seed, Tensor) or seed.dtype != torch.int64 or seed.dim() != 0:
        got = f"{seed.dtype}, shape {tuple(seed.shape)}" if isinstance(seed, Tensor) else type(seed).__name__
        raise TypeError(f"seed: expected an int64 scalar tensor, the dropout_seed of the call, got {got}")
    dropout_p = probability("dropout_p", dropout_p)
    sizes = {"batch": batch, "heads": heads, "query_length": query_length, "key_length": key_length}
    for name, size in (sizes | {"first_sequence": first_sequence}).items():
        if isinstance(size, bool) or not isinstance(size, Integral):
            raise TypeError(f"{name}: expected an integer, got {size!r}")
        if size < 0:
            raise ValueError(f"{name}: expected at least 0, got {size}")
    if rows is not None and (not isinstance(rows, Tensor) or rows.dtype not in _INTEGERS or rows.dim() != 1):
        raise TypeError(f"rows: expected None or a 1-D integer tensor of positions, got {rows!r}")
    if rows is not None and rows.numel() and values_readable(rows) and rows.min() < 0:
        raise ValueError(f"rows: expected positions of at least 0, got {int(rows.min())}")
    places = places_of(batch, heads, first_sequence, seed.device)
    rows = torch.arange(query_length, device=seed.device) if rows is None else rows.to(seed.device, torch.int64)
    return keep_mask_at(seed, dropout_p, places, rows, key_length)


def explain(*args, backend: str = "auto", **kwargs) -> Explanation:
    """Reports which backend would run a call, and why other backends would not, without running the call.

    Args:
        *args: positional arguments of `quasi_attention`; if `cu_seqlens` is given, of `quasi_attention_varlen`.
        backend: "auto", or a name of available_backends(). The environment variable QACG_BACKEND can replace "auto" by
            a name.
        **kwargs: keyword arguments of the same function; `return_lambda` has no effect. As in the call, requires_grad
            and torch.is_grad_enabled() decide whether a backward may follow.

    Returns:
        An Explanation: the selected backend, the reasons against the other backends, and notes. `print` shows them as
        text.

    Raises:
        TypeError: an argument is missing, unknown, or has the wrong type or dtype, or dropout_seed is not a scalar.
        ValueError: an argument has the wrong device, shape or value, or QACG_BACKEND has an unknown value.
        RuntimeError: the backend named by the argument or by QACG_BACKEND does not support the call.

    Example:
        >>> import torch
        >>> query, key, value, context_query, context_key = torch.randn(5, 2, 4, 10, 16, dtype=torch.float64).unbind()
        >>> lam = torch.rand(2, 4, 10, dtype=torch.float64)
        >>> explain(query, key, value, context_query, context_key, lam).selected
        'reference'
    """
    return dispatch.explained(problem_of(*args, **kwargs), backend)


_DENSE_CALL, _PACKED_CALL = inspect.signature(quasi_attention), inspect.signature(quasi_attention_varlen)


def problem_of(*args, **kwargs) -> Problem:
    """Returns the Problem of a call of `quasi_attention`, or of `quasi_attention_varlen` if `cu_seqlens` is given.

    The arguments are those of the call; `backend` and `return_lambda` have no effect.

    Raises:
        TypeError: an argument is missing, unknown, or has the wrong type or dtype.
        ValueError: an argument has the wrong device, shape or value.
    """
    packed = "cu_seqlens" in kwargs
    call = (_PACKED_CALL if packed else _DENSE_CALL).bind(*args, **kwargs)
    call.apply_defaults()
    values = {name: v for name, v in call.arguments.items() if name not in ("backend", "return_lambda")}
    return packed_problem(**values) if packed else dense_problem(**values)


def _seed(given: Tensor | None, dropout_p: float, query: Tensor) -> Tensor | None:
    # If query is no tensor, `dense_problem` and `packed_problem` raise the error.
    if given is not None or not isinstance(query, Tensor) or probability("dropout_p", dropout_p) == 0:
        return given
    return draw_dropout_seed(query.device)


def _differentiable(problem: Problem) -> bool:
    # Under torch.func a batched tensor's requires_grad does not state whether it will be differentiated.
    return torch.is_grad_enabled() and (
        problem.tensors.query.requires_grad  # the usual case first, to save launch overhead
        or functorch_active()
        or any(t is not None and t.requires_grad for t in problem.tensors)
    )


def _run(problem: Problem, backend: str, return_lambda: bool) -> Tensor | tuple[Tensor, Tensor]:
    if return_lambda is not False and return_lambda is not True:
        raise TypeError(f"return_lambda: expected True or False, got {return_lambda!r}")
    if return_lambda and problem.column_gate:
        raise ValueError(
            "return_lambda: expected False for a column gate, whose lambda has one value per query and key, got True. "
            "Call attention_maps for the rows that you need"
        )
    differentiable = _differentiable(problem)
    chosen = dispatch.select(problem, backend)
    residuals = chosen.residuals(problem) if differentiable else autograd.SAVE_NOTHING
    out, query_gate, key_gate = autograd.run_forward(chosen.NAME, problem, residuals, differentiable)
    if not return_lambda:
        return out
    if problem.gate_lambda is not None:
        return out, problem.gate_lambda
    assert query_gate is not None and key_gate is not None  # a call without lambda has gate vectors
    # Written with rsub and sub, lambda takes two pointwise kernels, or three for 16 bits.
    lam = torch.rsub(query_gate, 1, alpha=problem.beta).sub(key_gate, alpha=problem.gamma)
    return out, lam.to(out.dtype)

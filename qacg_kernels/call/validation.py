"""Validation of a public call: from its arguments to a `Problem`."""

import itertools
import math
import sys
from typing import NamedTuple

import torch
from torch import Tensor

from qacg_kernels.call.gate import FORMS, GateParameters
from qacg_kernels.call.problem import Problem
from qacg_kernels.utils.torch_internals import values_readable

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _agree(*tensors: object) -> bool:
    """Whether these are tensors of one dtype that kernels take, and on one device: all that `_check_tensor` asks."""
    first = tensors[0]
    if not isinstance(first, Tensor) or first.dtype not in _FLOATS:
        return False
    dtype, device = first.dtype, first.device
    for t in tensors:  # `all` of a generator takes twice as long
        if not isinstance(t, Tensor) or t.dtype != dtype or t.device != device or t.is_nested:
            return False
    return True


def _shape(t: Tensor) -> str:
    return f"({', '.join(str(n) for n in t.shape)})"


def _check_tensor(name: str, t: object, like: Tensor | None = None) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(f"{name}: got {type(t).__name__}, wanted a torch.Tensor")
    if t.is_nested:
        raise TypeError(
            f"{name}: expected a dense tensor, got a nested one; call quasi_attention_varlen with its values(), "
            "(T, H, D), cu_seqlens=offsets() and max_seqlen"
        )
    if t.dtype not in _FLOATS:
        raise TypeError(f"{name}: got dtype {t.dtype}, wanted one of float16, bfloat16, float32, float64")
    if like is not None:
        if t.dtype != like.dtype:
            raise TypeError(f"{name}: got dtype {t.dtype}, wanted {like.dtype} as query has")
        if t.device != like.device:
            raise ValueError(f"{name}: got device {t.device}, wanted {like.device} as query has")


def _check_shape(name: str, t: Tensor, *wanted: tuple[int, ...], meaning: str) -> None:
    if t.shape not in wanted:
        forms = " or ".join(f"({', '.join(str(n) for n in w)})" for w in wanted)
        raise ValueError(f"{name}: got shape {_shape(t)}, wanted {forms}, {meaning}")


_Optional = Tensor | None


class _Gate(NamedTuple):
    """The gate's fields of Problem: those of tensors, in its order, and beta, gamma, column_gate."""

    tensors: tuple[_Optional, _Optional, _Optional, _Optional, _Optional, _Optional, _Optional]
    options: tuple[float, float, bool] = (1.0, 1.0, False)


def _check_gate(gate: object, query: Tensor, packed: bool, lengths_differ: bool) -> _Gate:
    rows = query.shape[:-1]
    if isinstance(gate, Tensor):
        if gate.shape != rows or gate.dtype != query.dtype or gate.device != query.device:
            _check_tensor("gate", gate, query)
            _check_shape("gate", gate, tuple(rows), meaning=f"{'(T, H)' if packed else '(B, H, L)'} as query has")
        return _Gate((gate, None, None, None, None, None, None))
    if not isinstance(gate, GateParameters):
        raise TypeError(f"gate: got {type(gate).__name__}, wanted a lambda tensor or GateParameters")
    if gate.form not in FORMS:
        raise ValueError(f"gate.form: got {gate.form!r}, wanted one of {', '.join(map(repr, FORMS))}")
    heads, head_dim = query.shape[1], query.shape[-1]
    vectors, shapes = (gate.query, gate.context_query, gate.key, gate.context_key), ((head_dim,), (heads, head_dim))
    agree = _agree(query, *vectors)
    for name, vector in zip(("query", "context_query", "key", "context_key"), vectors):
        if not agree:
            _check_tensor(f"gate.{name}", vector, query)
        if vector.shape not in shapes:
            _check_shape(f"gate.{name}", vector, *shapes, meaning="(D) or (H, D)")
    for name in ("query_bias", "key_bias"):
        bias = getattr(gate, name)
        if bias is not None:
            _check_tensor(f"gate.{name}", bias, query)
            _check_shape(f"gate.{name}", bias, (), (heads,), meaning="() or (H)")
    if gate.form == "row" and lengths_differ:
        raise ValueError(
            "gate: a row gate takes the key gate at the query's own position and needs L equal to S; "
            'pass a lambda tensor (B, H, L), or GateParameters(form="column")'
        )
    options = (_number("gate.beta", gate.beta), _number("gate.gamma", gate.gamma), gate.form == "column")
    return _Gate((None, *vectors, gate.query_bias, gate.key_bias), options)


def _named(*others: Tensor) -> tuple[tuple[str, Tensor], ...]:
    """The wide tensors beside query, with the names that users know them by."""
    return tuple(zip(("key", "value", "context_query", "context_key"), others))


def _number(name: str, value: object) -> float:
    """The value as a finite float."""
    if isinstance(value, (str, bytes)):  # which float() would read
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    number = float(value)  # type: ignore[arg-type]
    if not -math.inf < number < math.inf:
        raise ValueError(f"{name}: expected a finite number, got {number}")
    return number


def _check_options(
    dropout_p: float, scale: float | None, quasi_scale: float, seed: Tensor | None, query: Tensor
) -> tuple[float, float, float]:
    """dropout_p, scale and quasi_scale as numbers in their ranges."""
    if isinstance(dropout_p, (str, bytes)):
        raise TypeError(f"dropout_p: expected a number, got {type(dropout_p).__name__}")
    dropout_p = float(dropout_p)
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p: got {dropout_p}, wanted a probability in [0, 1)")
    if seed is not None:
        if not isinstance(seed, Tensor) or seed.dtype != torch.int64 or seed.dim() != 0:
            raise TypeError("dropout_seed: wanted an int64 scalar tensor, as draw_dropout_seed gives")
        if seed.device != query.device:
            raise ValueError(f"dropout_seed: got device {seed.device}, wanted {query.device} as query has")
    scale = query.shape[-1] ** -0.5 if scale is None else _number("scale", scale)
    return dropout_p, scale, _number("quasi_scale", quasi_scale)


def _mask_4d(mask: object, query: Tensor, key: Tensor) -> Tensor | None:
    """The mask with four dimensions, each 1 or full, so that backends broadcast by stride."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise TypeError(f"attn_mask: got {type(mask).__name__}, wanted a torch.Tensor or None")
    if mask.dtype not in (torch.bool, query.dtype):
        raise TypeError(f"attn_mask: got dtype {mask.dtype}, wanted torch.bool or {query.dtype} as query has")
    if mask.device != query.device:
        raise ValueError(f"attn_mask: got device {mask.device}, wanted {query.device} as query has")
    if mask.requires_grad:
        raise ValueError(
            "attn_mask: got a tensor that requires grad; gradients of the mask are not computed, detach() it"
        )
    full = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    shape = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    if mask.dim() > 4 or any(n not in (1, wanted) for n, wanted in zip(shape, full)):
        raise ValueError(f"attn_mask: got shape {_shape(mask)}, wanted one that broadcasts to {full}, (B, H, L, S)")
    return mask.reshape(shape)


def _integers(name: str, t: object, query: Tensor) -> Tensor:
    if not isinstance(t, Tensor):
        raise TypeError(f"{name}: got {type(t).__name__}, wanted an integer tensor")
    if t.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: got dtype {t.dtype}, wanted torch.int32 or torch.int64")
    if t.device != query.device:
        raise ValueError(f"{name}: got device {t.device}, wanted {query.device} as query has")
    if t.dim() != 1:
        raise ValueError(f"{name}: got shape {_shape(t)}, wanted one dimension")
    return t


def _as_int32(t: Tensor) -> Tensor:
    """Lengths or offsets as int32, which kernels read. Those that can be read have been checked."""
    if t.dtype == torch.int32:
        return t
    if not values_readable(t):  # kernels clamp what leads outside, and must not see it wrapped
        return t.clamp(0, torch.iinfo(torch.int32).max).to(torch.int32)
    # The low halves, in place: autograd then raises where the caller changes a length before the backward.
    return t.contiguous().view(torch.int32)[0 if sys.byteorder == "little" else 1 :: 2]


def dense_problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context_query: Tensor,
    context_key: Tensor,
    gate: Tensor | GateParameters,
    *,
    attn_mask: Tensor | None,
    key_lengths: Tensor | None,
    is_causal: bool,
    dropout_p: float,
    scale: float | None,
    quasi_scale: float,
    dropout_seed: Tensor | None,
) -> Problem:
    """Checks a call on (B, H, L, D) tensors; raises TypeError or ValueError naming the argument."""
    # At a glance first: of a call of short rows each check by itself, ready to tell its fault, would be a good part.
    if not _agree(query, key, value, context_query, context_key):
        _check_tensor("query", query)
        for name, t in _named(key, value, context_query, context_key):
            _check_tensor(name, t, query)
    if query.dim() != 4:
        raise ValueError(f"query: got shape {_shape(query)}, wanted four dimensions (B, H, L, D)")
    batch, heads, length, head_dim = query.shape
    if head_dim == 0:
        raise ValueError(f"query: got shape {_shape(query)}, wanted a head size D of at least 1")
    if key.dim() != 4:
        raise ValueError(f"key: got shape {_shape(key)}, wanted four dimensions (B, H, S, D)")
    key_shape, key_length = key.shape, key.shape[2]
    if key_shape != (batch, heads, key_length, head_dim):
        _check_shape("key", key, (batch, heads, key_length, head_dim), meaning="(B, H, S, D) with B, H, D of query")
    if value.shape != key_shape or context_key.shape != key_shape or context_query.shape != query.shape:
        _check_shape("value", value, tuple(key_shape), meaning="(B, H, S, D) as key has")
        _check_shape("context_query", context_query, tuple(query.shape), meaning="(B, H, L, D) as query has")
        _check_shape("context_key", context_key, tuple(key_shape), meaning="(B, H, S, D) as key has")
    gates = _check_gate(gate, query, packed=False, lengths_differ=length != key_length)
    dropout_p, scale, quasi_scale = _check_options(dropout_p, scale, quasi_scale, dropout_seed, query)
    attn_mask = _mask_4d(attn_mask, query, key)
    if key_lengths is not None:
        key_lengths = _integers("key_lengths", key_lengths, query)
        _check_shape("key_lengths", key_lengths, (batch,), meaning="one length per sequence")
        if values_readable(key_lengths) and batch:
            low, high = (int(x) for x in key_lengths.aminmax())
            if low < 0 or high > key_length:
                raise ValueError(f"key_lengths: got values from {low} to {high}, wanted 0 to S = {key_length}")
        key_lengths = _as_int32(key_lengths)
    return Problem(
        query,
        key,
        value,
        context_query,
        context_key,
        *gates.tensors,
        attn_mask,
        key_lengths,
        None,
        dropout_seed,
        0,
        bool(is_causal),
        dropout_p,
        scale,
        quasi_scale,
        *gates.options,
    )


def packed_problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context_query: Tensor,
    context_key: Tensor,
    gate: Tensor | GateParameters,
    *,
    cu_seqlens: Tensor,
    max_seqlen: int,
    is_causal: bool,
    dropout_p: float,
    scale: float | None,
    quasi_scale: float,
    dropout_seed: Tensor | None,
) -> Problem:
    """Checks a call on packed (T, H, D) tensors; raises TypeError or ValueError naming the argument."""
    named = _named(key, value, context_query, context_key)
    if not _agree(query, key, value, context_query, context_key):
        _check_tensor("query", query)
        for name, t in named:
            _check_tensor(name, t, query)
    if query.dim() != 3:
        raise ValueError(f"query: got shape {_shape(query)}, wanted three dimensions (T, H, D)")
    if query.shape[-1] == 0:
        raise ValueError(f"query: got shape {_shape(query)}, wanted a head size D of at least 1")
    for name, t in named:
        if t.shape != query.shape:
            _check_shape(name, t, tuple(query.shape), meaning="(T, H, D) as query has")
    gates = _check_gate(gate, query, packed=True, lengths_differ=False)
    dropout_p, scale, quasi_scale = _check_options(dropout_p, scale, quasi_scale, dropout_seed, query)
    cu_seqlens = _integers("cu_seqlens", cu_seqlens, query)
    if cu_seqlens.shape[0] < 1:
        raise ValueError("cu_seqlens: got no entries, wanted offsets 0, ..., T (one more than sequences)")
    if isinstance(max_seqlen, bool) or not isinstance(max_seqlen, (int, torch.SymInt)):
        raise TypeError(f"max_seqlen: got {type(max_seqlen).__name__}, wanted an int")
    if max_seqlen < 0:
        raise ValueError(f"max_seqlen: got {max_seqlen}, wanted the length of the longest sequence")
    if values_readable(cu_seqlens):
        offsets = cu_seqlens.tolist()
        lengths = [b - a for a, b in itertools.pairwise(offsets)]
        if offsets[0] != 0 or offsets[-1] != query.shape[0] or min(lengths, default=0) < 0:
            raise ValueError(
                f"cu_seqlens: got {offsets if len(offsets) < 9 else [*offsets[:8], '...']}, "
                f"wanted offsets that never decrease from 0 to T = {query.shape[0]}"
            )
        if max(lengths, default=0) > max_seqlen:
            raise ValueError(f"max_seqlen: got {max_seqlen}, wanted at least {max(lengths)}, the longest sequence")
    cu_seqlens = _as_int32(cu_seqlens)
    return Problem(
        query,
        key,
        value,
        context_query,
        context_key,
        *gates.tensors,
        None,
        None,
        cu_seqlens,
        dropout_seed,
        max_seqlen,
        bool(is_causal),
        dropout_p,
        scale,
        quasi_scale,
        *gates.options,
    )

"""Validates the arguments of the public functions and of direct operator calls, and makes a `Problem` of them."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from qacg_kernels.call.equations import MINUS_LOG_KEYS, QuasiBias, bias_of_keys, bias_of_packed_keys
from qacg_kernels.call.gate import GateParameters
from qacg_kernels.call.problem import (
    FORMS,
    GATE_PARAMETERS,
    HIDING,
    Options,
    Problem,
    Saved,
    Tensors,
    cast_mask,
    row_dtype,
)
from qacg_kernels.utils.torch_internals import surely_one, values_readable

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_MOST = torch.finfo(torch.float32).max  # kernels compute with numbers in float32
_Optional = Tensor | None


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
    quasi_bias: QuasiBias,
    dropout_seed: Tensor | None,
) -> Problem:
    """Validates a call on (B, H, L, D) tensors and returns its Problem.

    The arguments are those of `quasi_attention` without `backend` and `return_lambda`.
    """
    if is_causal is not False and is_causal is not True:
        raise TypeError(f"is_causal: expected True or False, got {is_causal!r}")
    # First one comparison of all five tensors: separate checks would add noticeable launch overhead to a short call.
    if not _agree(query, key, value, context_query, context_key):
        _check_tensors(query, key, value, context_query, context_key)
    shape, key_shape = query.shape, key.shape  # read once: each access makes a new object
    if len(shape) != 4:
        raise ValueError(f"query: expected four dimensions (B, H, L, D), got shape {_shape(query)}")
    batch, heads, length, head_dim = shape
    if head_dim == 0:
        raise ValueError(f"query: expected a head size D of at least 1, got shape {_shape(query)}")
    if len(key_shape) != 4:
        raise ValueError(f"key: expected four dimensions (B, H, S, D), got shape {_shape(key)}")
    key_length = key_shape[2]
    if key_shape != (batch, heads, key_length, head_dim):
        _check_shape("key", key, (batch, heads, key_length, head_dim), meaning="(B, H, S, D) with B, H, D of query")
    if value.shape != key_shape or context_key.shape != key_shape or context_query.shape != shape:
        _check_shape("value", value, tuple(key_shape), meaning="(B, H, S, D) like key")
        _check_shape("context_query", context_query, tuple(shape), meaning="(B, H, L, D) like query")
        _check_shape("context_key", context_key, tuple(key_shape), meaning="(B, H, S, D) like key")
    gates = _check_gate(gate, query, packed=False, lengths=(length, key_length))
    numbers = _check_options(dropout_p, scale, quasi_scale, dropout_seed, query)
    attn_mask = _mask_4d(attn_mask, query, key)
    if key_lengths is not None:
        key_lengths = _integers("key_lengths", key_lengths, query)
        _check_shape("key_lengths", key_lengths, (batch,), meaning="one length per sequence")
        if values_readable(key_lengths) and batch:
            low, high = (int(x) for x in key_lengths.aminmax())
            if low < 0 or high > key_length:
                raise ValueError(f"key_lengths: expected 0 to S = {key_length}, got values from {low} to {high}")
    bias = None
    if type(quasi_bias) is not float or quasi_bias:  # the usual case first; isinstance() would add launch overhead
        bias = _bias(quasi_bias, query, lambda: bias_of_keys(query, key, attn_mask, key_lengths, is_causal))
    wide = query, key, value, context_query, context_key
    tensors = Tensors(*wide, *gates.tensors, attn_mask, key_lengths, None, dropout_seed, bias)
    return Problem(tensors, Options(0, is_causal, *numbers, *gates.options))


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
    quasi_bias: QuasiBias,
    dropout_seed: Tensor | None,
) -> Problem:
    """Validates a call on packed (T, H, D) tensors and returns its Problem.

    The arguments are those of `quasi_attention_varlen` without `backend` and `return_lambda`.
    """
    if is_causal is not False and is_causal is not True:
        raise TypeError(f"is_causal: expected True or False, got {is_causal!r}")
    if not _agree(query, key, value, context_query, context_key):
        _check_tensors(query, key, value, context_query, context_key)
    if query.dim() != 3:
        raise ValueError(f"query: expected three dimensions (T, H, D), got shape {_shape(query)}")
    if query.shape[-1] == 0:
        raise ValueError(f"query: expected a head size D of at least 1, got shape {_shape(query)}")
    for name, t in zip(_BESIDE_QUERY, (key, value, context_query, context_key)):
        if t.shape != query.shape:
            _check_shape(name, t, tuple(query.shape), meaning="(T, H, D) like query")
    gates = _check_gate(gate, query, packed=True, lengths=None)
    numbers = _check_options(dropout_p, scale, quasi_scale, dropout_seed, query)
    cu_seqlens = _integers("cu_seqlens", cu_seqlens, query)
    if cu_seqlens.shape[0] < 1:
        raise ValueError("cu_seqlens: expected offsets from 0 to T, N + 1 for N sequences, got an empty tensor")
    if isinstance(max_seqlen, bool) or not isinstance(max_seqlen, (int, torch.SymInt)):
        raise TypeError(f"max_seqlen: expected an int, got {type(max_seqlen).__name__}")
    if max_seqlen < 0:
        raise ValueError(f"max_seqlen: expected the length of the longest sequence, at least 0, got {max_seqlen}")
    if values_readable(cu_seqlens):
        _check_offsets(cu_seqlens.tolist(), query.shape[0], max_seqlen)
    bias = None
    if type(quasi_bias) is not float or quasi_bias:
        bias = _bias(quasi_bias, query, lambda: bias_of_packed_keys(query, cu_seqlens, is_causal))
    wide = query, key, value, context_query, context_key
    tensors = Tensors(*wide, *gates.tensors, None, None, cu_seqlens, dropout_seed, bias)
    return Problem(tensors, Options(max_seqlen, is_causal, *numbers, *gates.options))


def check_problem(p: Problem) -> None:
    """Validates a direct call of an operator by the rules of the public functions, because kernels rely on them."""
    if p.gate_lambda is not None:
        gate: Tensor | GateParameters = p.gate_lambda
        if p.options.gate_form != 0:
            raise ValueError(
                "gate_form: expected 0 with gate_lambda, got another number. Pass 0, or gate vectors instead of "
                "gate_lambda."
            )
    else:
        # For an absent vector and an invalid gate_form, the errors are those of a public call.
        fields: dict[str, Any] = {name.removeprefix("gate_"): getattr(p, name) for name in GATE_PARAMETERS}
        gate = GateParameters(**fields, beta=p.beta, gamma=p.gamma, form=cast(str, p.gate_form))
    names = ("is_causal", "dropout_p", "scale", "quasi_scale", "dropout_seed")
    options = {name: getattr(p, name) for name in names} | {"quasi_bias": 0.0 if p.quasi_bias is None else p.quasi_bias}
    if p.cu_seqlens is not None:
        if p.attn_mask is not None or p.key_lengths is not None:
            raise ValueError("attn_mask, key_lengths: expected None in a call with cu_seqlens, got a tensor")
        packed_problem(*p.wide, gate, cu_seqlens=p.cu_seqlens, max_seqlen=p.max_seqlen, **options)
    else:
        if p.attn_mask is not None and p.attn_mask.dim() != 4:
            raise ValueError(f"attn_mask: expected four dimensions, got shape {_shape(p.attn_mask)}")
        dense_problem(*p.wide, gate, attn_mask=p.attn_mask, key_lengths=p.key_lengths, **options)
    if p.dropout_p > 0 and p.dropout_seed is None:
        raise ValueError("dropout_seed: expected an int64 scalar tensor since dropout_p > 0, got None")


def check_saved(p: Problem, saved: Saved) -> None:
    """Validates the saved tensors of a direct call of a backward operator, whose problem is already validated.

    An absent tensor is None, and an absent branch output may also be empty.
    """
    query, rows = p.query, p.query.shape[:-1]
    key_rows = (p.key if p.column_gate else query).shape[:-1]
    wide = ("grad_out", *(name for name in ("softmax_out", "quasi_out") if getattr(saved, name).numel()))
    shapes = dict.fromkeys(wide, query.shape) | {"row_max": rows, "row_sum": rows}
    if p.gate_lambda is None:
        shapes |= {"query_gate": rows, "key_gate": key_rows, "grad_query_gate": rows, "grad_key_gate": key_rows}
    for name, shape in shapes.items():
        t, dtype = getattr(saved, name), query.dtype if name in wide else row_dtype(query)
        if t is None:
            continue
        _check_shape(name, t, tuple(shape), meaning="as in the forward")
        if t.dtype != dtype:
            raise TypeError(f"{name}: expected dtype {dtype}, got {t.dtype}")
        if t.device != query.device:
            raise ValueError(f"{name}: expected device {query.device} like query, got {t.device}")


_DENSE = torch.strided
_PLAIN = (Tensor, torch.nn.Parameter)
_BESIDE_QUERY = ("key", "value", "context_query", "context_key")


def dense_tensor(name: str, t: object, expected: str = "a torch.Tensor") -> Tensor:
    """Returns `t` if it is a dense tensor whose memory has its values; `expected` is for the message."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{name}: expected {expected}, got {type(t).__name__}")
    # By name, because importing torch.nn.attention.bias imports the compiler, which takes seconds.
    if type(t) not in _PLAIN and "CausalBias" in (kind.__name__ for kind in type(t).__mro__):
        raise TypeError(
            f"{name}: expected a tensor whose memory has its values, got CausalBias. Pass the values that it "
            "stands for: torch.ones(L, S, dtype=torch.bool).tril() for causal_upper_left, .tril(S - L) for "
            "causal_lower_right. In quasi_attention, is_causal=True replaces the former"
        )
    if t.is_nested:
        raise TypeError(
            f"{name}: expected a dense tensor, got a nested one. Call quasi_attention_varlen with values() of the "
            "nested tensors, of shape (T, H, D), their offsets() as cu_seqlens, and max_seqlen"
        )
    if t.layout is not _DENSE:
        raise TypeError(f"{name}: expected a dense tensor, got layout {t.layout}. Pass {name}.to_dense()")
    return t


def _agree(*tensors: Any) -> bool:
    """Whether all arguments are dense tensors, of no subclass, with the same supported dtype and device."""
    first = tensors[0]
    if type(first) not in _PLAIN or first.dtype not in _FLOATS:
        return False
    dtype, device = first.dtype, first.device
    for t in tensors:  # `all` of a generator takes twice as long
        if type(t) not in _PLAIN or t.dtype != dtype or t.device != device or t.layout is not _DENSE or t.is_nested:
            return False
    return True


def _shape(t: Tensor) -> str:
    return f"({', '.join(str(n) for n in t.shape)})"


def _check_tensors(query: Tensor, *others: object) -> None:
    _check_tensor("query", query)
    for name, t in zip(_BESIDE_QUERY, others):
        _check_tensor(name, t, query)


def _check_tensor(name: str, t: object, like: Tensor | None = None, also: torch.dtype | None = None) -> None:
    """Validates type, dtype and device. `like` is query, and `also` another dtype than query's that is allowed."""
    t = dense_tensor(name, t)
    if t.dtype not in _FLOATS:
        raise TypeError(f"{name}: expected dtype float16, bfloat16, float32 or float64, got {t.dtype}")
    if like is not None:
        if t.dtype not in (like.dtype, also):
            other = f", or {also}" if also not in (like.dtype, None) else ""
            raise TypeError(f"{name}: expected dtype {like.dtype} like query{other}, got {t.dtype}")
        if t.device != like.device:
            raise ValueError(f"{name}: expected device {like.device} like query, got {t.device}")


def _check_shape(name: str, t: Tensor, *expected: tuple[int, ...], meaning: str) -> None:
    if t.shape not in expected:
        shapes = " or ".join(f"({', '.join(str(n) for n in sizes)})" for sizes in expected)
        raise ValueError(f"{name}: expected shape {shapes}, {meaning}, got {_shape(t)}")


class _Gate(NamedTuple):
    """What describes the gate: the fields of Tensors in order, and those of Options: beta, gamma and gate_form."""

    tensors: tuple[_Optional, _Optional, _Optional, _Optional, _Optional, _Optional, _Optional, _Optional, _Optional]
    options: tuple[float, float, int] = (1.0, 1.0, 0)


def _check_gate(gate: object, query: Tensor, packed: bool, lengths: tuple[int, int] | None) -> _Gate:
    rows = query.shape[:-1]
    if isinstance(gate, Tensor):
        # Not _agree(query, gate), which takes twice as long.
        like = type(gate) in _PLAIN and gate.dtype == query.dtype and gate.device == query.device
        if not like or gate.layout is not _DENSE or gate.is_nested or gate.shape != rows:
            _check_tensor("gate", gate, query)
            _check_shape("gate", gate, tuple(rows), meaning=f"{'(T, H)' if packed else '(B, H, L)'} like query")
        return _Gate((gate, None, None, None, None, None, None, None, None))
    if not isinstance(gate, GateParameters):
        raise TypeError(f"gate: expected a lambda tensor or GateParameters, got {type(gate).__name__}")
    if gate.form not in FORMS:
        raise ValueError(f"gate.form: expected one of {', '.join(map(repr, FORMS))}, got {gate.form!r}")
    heads, head_dim = query.shape[1], query.shape[-1]
    vectors = (gate.query, gate.context_query, gate.key, gate.context_key)
    biases = (gate.query_bias, gate.context_query_bias, gate.key_bias, gate.context_key_bias)
    agree = _agree(*vectors, *[bias for bias in biases if bias is not None])
    if not agree or gate.query.dtype not in (query.dtype, row_dtype(query)) or gate.query.device != query.device:
        _check_gate_tensors((*vectors, *biases), query)
    shapes, bias_shapes = ((head_dim,), (1, head_dim), (heads, head_dim)), ((), (1,), (heads,))
    for n, vector in enumerate(vectors):
        if vector.shape not in shapes:
            _check_shape(_GATE_NAMES[n], vector, *shapes, meaning="that is (D), (1, D) or (H, D)")
    for n, bias in enumerate(biases, len(vectors)):
        if bias is not None and bias.shape not in bias_shapes:
            _check_shape(_GATE_NAMES[n], bias, *bias_shapes, meaning="that is (), (1) or (H)")
    if gate.form == "row" and lengths is not None and lengths[0] != lengths[1]:
        raise ValueError(
            "gate: expected L equal to S for a row gate, which takes the key gate at the query's position, got "
            f"L = {lengths[0]} and S = {lengths[1]}. "
            'Pass a lambda tensor (B, H, L) or GateParameters(form="column").'
        )
    options = (finite_number("gate.beta", gate.beta), finite_number("gate.gamma", gate.gamma), FORMS.index(gate.form))
    return _Gate((None, *vectors, *biases), options)


_GATE_NAMES = tuple(name.replace("_", ".", 1) for name in GATE_PARAMETERS)


def _check_gate_tensors(parameters: Sequence[Any], query: Tensor) -> None:
    """Validates types, dtypes and devices of the gate's parameters."""
    for name, t in zip(_GATE_NAMES, parameters):
        if t is None and name.endswith("_bias"):
            continue
        _check_tensor(name, t, query, row_dtype(query))
        if t.dtype != parameters[0].dtype:
            raise TypeError(f"{name}: expected dtype {parameters[0].dtype} like gate.query, got {t.dtype}")


def _number(name: str, value: object) -> float:
    """The value as a float; raises TypeError if it is no number, and ValueError if it is too large."""
    if isinstance(value, Tensor):  # float() would synchronise with a GPU, and torch.compile cannot trace the checks
        raise TypeError(f"{name}: expected a number, got a tensor. Pass {name}.item(), which has no gradient")
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}") from None
    except OverflowError:
        raise ValueError(f"{name}: expected a number that a float can store, got a larger one") from None


def finite_number(name: str, value: object) -> float:
    """The value as a float that float32 can store, rounded."""
    # The usual class first, without a function call, to save launch overhead; `probability` does the same.
    number: float = value if value.__class__ is float else _number(name, value)  # type: ignore[assignment]
    if not -_MOST <= number <= _MOST:
        kind = "a number that float32 can store" if math.isfinite(number) else "a finite number"
        raise ValueError(f"{name}: expected {kind}, got {number}")
    return number


def checked_quasi_bias(bias: object) -> float | Literal["-log(keys)"]:
    """Returns the bias of a module or a configuration: a number as a float, or MINUS_LOG_KEYS."""
    if bias == MINUS_LOG_KEYS:
        return MINUS_LOG_KEYS
    if isinstance(bias, bool) or not isinstance(bias, (int, float)):
        raise TypeError(f"quasi_bias: expected a number or {MINUS_LOG_KEYS!r}, got {bias!r}")
    return finite_number("quasi_bias", bias)


def probability(name: str, value: object) -> float:
    """The value as a float; raises TypeError if it is no number, and ValueError if it is not in [0, 1)."""
    number: float = value if value.__class__ is float else _number(name, value)  # type: ignore[assignment]
    if not 0.0 <= number < 1.0:
        raise ValueError(f"{name}: expected a probability in [0, 1), got {number}")
    return number


def _check_options(
    dropout_p: float, scale: float | None, quasi_scale: float, seed: Tensor | None, query: Tensor
) -> tuple[float, float, float]:
    """Validates the options and the seed; returns dropout_p, scale (its default for None) and quasi_scale as floats."""
    dropout_p = probability("dropout_p", dropout_p)
    if seed is not None:
        dense = isinstance(seed, Tensor) and seed.layout is _DENSE
        if not dense or seed.dtype != torch.int64 or seed.dim() != 0:
            got = (
                f"{seed.layout}, {seed.dtype}, shape {_shape(seed)}"
                if isinstance(seed, Tensor)
                else type(seed).__name__
            )
            raise TypeError(f"dropout_seed: expected an int64 scalar tensor, as draw_dropout_seed returns, got {got}")
        if seed.device != query.device:
            raise ValueError(f"dropout_seed: expected device {query.device} like query, got {seed.device}")
    scale = query.shape[-1] ** -0.5 if scale is None else finite_number("scale", scale)
    return dropout_p, scale, finite_number("quasi_scale", quasi_scale)


def _bias(bias: object, query: Tensor, of_keys: Callable[[], Tensor]) -> Tensor | None:
    """Validates a bias; returns a tensor with lambda's dimensions, each of full size or of size 1, or None for 0.

    `of_keys` returns the tensor for the bias MINUS_LOG_KEYS.
    """
    rows, dtype = tuple(query.shape[:-1]), row_dtype(query)
    if isinstance(bias, str):
        if bias != MINUS_LOG_KEYS:
            raise ValueError(f"quasi_bias: expected a number, a tensor or {MINUS_LOG_KEYS!r}, got {bias!r}")
        return of_keys()
    if not isinstance(bias, Tensor):
        number = finite_number("quasi_bias", bias)
        return torch.full((1,) * len(rows), number, dtype=dtype, device=query.device) if number else None
    bias = dense_tensor("quasi_bias", bias)
    if bias.dtype != dtype:
        raise TypeError(f"quasi_bias: expected dtype {dtype}, got {bias.dtype}")
    if bias.device != query.device:
        raise ValueError(f"quasi_bias: expected device {query.device} like query, got {bias.device}")
    if bias.requires_grad:
        raise ValueError(
            "quasi_bias: expected a tensor without gradient, got one that requires grad. Pass quasi_bias.detach(); a "
            "learned bias is not supported"
        )
    shape = (1,) * (len(rows) - bias.dim()) + tuple(bias.shape)
    if bias.dim() > len(rows) or not broadcasts(shape, rows):
        names = "(B, H, L)" if len(rows) == 3 else "(T, H)"
        raise ValueError(f"quasi_bias: expected a shape that broadcasts to {names} = {rows}, got shape {_shape(bias)}")
    return bias.reshape(shape)


def _mask_4d(mask: object, query: Tensor, key: Tensor) -> Tensor | None:
    """Validates a mask and returns a view with four dimensions, each of full size or of size 1, to be broadcast."""
    if mask is None:
        return None
    mask = dense_tensor("attn_mask", mask, "a torch.Tensor or None")
    if mask.dtype not in (torch.bool, query.dtype):
        raise TypeError(f"attn_mask: expected dtype torch.bool or {query.dtype} like query, got {mask.dtype}")
    if mask.device != query.device:
        raise ValueError(f"attn_mask: expected device {query.device} like query, got {mask.device}")
    if mask.requires_grad:
        raise ValueError(
            "attn_mask: expected a tensor without gradient, got one that requires grad. Pass attn_mask.detach(); a "
            "learned mask is not supported"
        )
    full = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    shape = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    if mask.dim() > 4 or not broadcasts(shape, full):
        raise ValueError(
            f"attn_mask: expected a shape that broadcasts to (B, H, L, S) = {full}, got shape {_shape(mask)}"
        )
    return mask.reshape(shape)


def broadcasts(shape: Sequence[int], full: Sequence[int]) -> bool:
    """Whether each size in `shape` is 1 or that of `full`."""
    compiling = torch.compiler.is_compiling()
    # Not `all` of a generator, which takes longer.
    return not [n for n, size in zip(shape, full) if not (compiling and surely_one(n)) and n not in (size, 1)]


def _integers(name: str, t: object, query: Tensor) -> Tensor:
    t = dense_tensor(name, t, "an integer tensor")
    if t.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: expected dtype torch.int32 or torch.int64, got {t.dtype}")
    if t.device != query.device:
        raise ValueError(f"{name}: expected device {query.device} like query, got {t.device}")
    if t.dim() != 1:
        raise ValueError(f"{name}: expected one dimension, got shape {_shape(t)}")
    return t


def _check_offsets(offsets: list[int], tokens: int, max_seqlen: int) -> None:
    lengths = [stop - start for start, stop in itertools.pairwise(offsets)]
    if offsets[0] != 0 or offsets[-1] != tokens or min(lengths, default=0) < 0:
        raise ValueError(
            f"cu_seqlens: expected offsets from 0 to T = {tokens} that never decrease, "
            f"got {offsets if len(offsets) < 9 else [*offsets[:8], '...']}"
        )
    if max(lengths, default=0) > max_seqlen:
        raise ValueError(f"max_seqlen: expected at least {max(lengths)}, the longest sequence, got {max_seqlen}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises ValueError with the name of the argument if its value is not one of the choices."""
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Raises TypeError with the name of the argument if its value is not True or False."""
    if value is not True and value is not False:
        raise TypeError(f"{name}: expected True or False, got {value!r}")


def device_type(device: object) -> str | None:
    """The type of a device, None if torch has no device of this name."""
    try:
        return torch.device(device).type  # type: ignore[call-overload]
    except (RuntimeError, TypeError):
        return None


def check_parameter_options(device: object, dtype: object) -> None:
    """Raises TypeError if `dtype` is neither floating nor None, and ValueError if torch has no device of this name."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype: expected a floating torch.dtype or None, got {dtype!r}")
    if device is not None and device_type(device) is None:
        raise ValueError(f"device: expected a device of torch or None, got {device!r}")


def one_context(
    contexts: Sequence[Tensor | None], hidden_states: object, attention_mask: Any, device: object
) -> Tensor:
    """Returns the context among the values of `context`, C_embed and context_embedded of an attention module.

    The other arguments of the module show a wrong order.
    """
    order = "The order is (hidden_states, attention_mask, device, context). Pass context=..."
    if isinstance(device, Tensor):
        raise TypeError(f"device: expected a device, got a tensor as the third argument. {order}")
    given = [c for c in contexts if c is not None]
    if len(given) == 1:
        return given[0]
    floating = isinstance(attention_mask, Tensor) and attention_mask.is_floating_point()
    if not given and floating and attention_mask.shape == getattr(hidden_states, "shape", None):
        got = f"got shape {tuple(attention_mask.shape)}, that of hidden_states, and no context"
        raise TypeError(f"attention_mask: expected a mask, {got}. {order}")
    raise TypeError(
        "context: expected exactly one of context, C_embed and context_embedded, which are names of the same "
        f"argument, got {len(given)}"
    )


def mask_for_scores(mask: object, query: Tensor) -> Tensor | None:
    """Returns a key mask (B, L), or a score mask for (B, L, L) or (B, H, L, L), with four dimensions; None stays None.

    The result is boolean or has query's dtype.
    """
    if mask is None:
        return None
    mask = dense_tensor("attention_mask", mask, "a torch.Tensor or None")
    if mask.device != query.device:
        raise ValueError(f"attention_mask: expected device {query.device} like hidden_states, got {mask.device}")
    got = f"got {mask.dtype} of shape {tuple(mask.shape)}"
    if mask.dim() == 2:
        if mask.is_floating_point() or mask.is_complex():
            # A floating (B, L) mask may state visibility or be added to the scores; a wrong guess would be silent.
            kinds = "boolean or integer (B, L), or additive with four dimensions (B, 1, 1, L)"
            raise ValueError(f"attention_mask: expected {kinds}, {got}")
        if mask.shape != (query.shape[0], query.shape[2]):
            raise ValueError(f"attention_mask: expected shape (B, L) = ({query.shape[0]}, {query.shape[2]}), {got}")
        if values_readable(mask) and mask.dtype != torch.bool and bool(((mask != 0) & (mask != 1)).any()):
            raise ValueError("attention_mask: expected 1 where a key is visible and 0 elsewhere, got other integers")
        return (mask != 0)[:, None, None, :]
    if mask.dim() not in (3, 4) or not (mask.dtype == torch.bool or mask.dtype in HIDING):
        kinds = "boolean or integer for (B, L), boolean or floating (16 to 64 bits) for (B, L, L) or (B, H, L, L)"
        raise ValueError(f"attention_mask: expected {kinds}, {got}")
    mask = mask if mask.dim() == 4 else mask[:, None]
    full = (*query.shape[:3], query.shape[2])
    if not broadcasts(mask.shape, full):
        raise ValueError(f"attention_mask: expected a shape that broadcasts to (B, H, L, L) = {full}, {got}")
    return mask if mask.dtype == torch.bool else cast_mask(mask, query.dtype)

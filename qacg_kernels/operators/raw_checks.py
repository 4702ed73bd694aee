"""Whether the tensors of a raw operator's call fit together, for kernels in Python.

Raw operators are called without the checks of `problem.py`, and kernels trust every size. The rules, and the words, are
those of csrc/common/checks.h, which holds the compiled kernels' calls to them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor

_VECTORS = ("gate_query", "gate_context_query", "gate_key", "gate_context_key")
_BIASES = ("gate_query_bias", "gate_key_bias")
_INTEGERS = (torch.int32, torch.int64)


def check_inputs(
    inputs: tuple[Tensor | None, ...],
    *,
    max_seqlen: int,
    dropout_p: float,
    column_gate: bool,
    **others: object,
) -> None:
    """Checks what forward and backward have in common, in the schema's order (`ops.py`).

    Raises:
        ValueError: naming the first argument that does not fit, and what was wanted.
    """
    query, key, value, context_query, context_key, gate_lambda = inputs[:6]
    attn_mask, key_lengths, cu_seqlens, seed = inputs[12:]
    packed = cu_seqlens is not None
    _require(query.dim() == (3 if packed else 4), "query", "(B, H, L, D), or with cu_seqlens (T, H, D)")
    _require(key.dim() == query.dim(), "key", "(B, H, S, D), or with cu_seqlens (T, H, D)")
    rows, columns = query.shape, key.shape
    heads, head_dim = rows[1], rows[-1]
    _shape("key", key, rows if packed else (rows[0], heads, columns[2], head_dim))
    _shape("value", value, columns)
    _shape("context_query", context_query, rows)
    _shape("context_key", context_key, columns)
    for t in inputs[1:5]:
        _require(t.dtype == query.dtype, "key, value, context_query, context_key", "query's dtype")
    if gate_lambda is not None:
        _of_query("gate_lambda", gate_lambda, query, rows[:-1])
        _require(not column_gate, "column_gate", "the gate vectors, not gate_lambda")
    else:
        for name, t in zip(_VECTORS, inputs[6:10]):
            _require(t is not None, name, "a tensor, since gate_lambda is absent")
            _of_query(name, t, query, (head_dim,), (heads, head_dim))
        for name, t in zip(_BIASES, inputs[10:12]):
            if t is not None:
                _of_query(name, t, query, (), (heads,))
        as_many = column_gate or rows[-2] == columns[-2]
        advice = "as many keys as queries, since a row gate takes the key gate at the query's own position"
        _require(packed or as_many, "gate", advice)
    if packed:
        _integers("cu_seqlens", cu_seqlens)
        _require(cu_seqlens.shape[0] > 0, "cu_seqlens", "offsets 0, ..., T")
        _require(attn_mask is None and key_lengths is None, "attn_mask, key_lengths", "None beside cu_seqlens")
        _check_offsets(cu_seqlens, rows[0], max_seqlen)
    else:
        if attn_mask is not None:
            full = (rows[0], heads, rows[2], columns[2])
            fits = attn_mask.dim() == 4 and all(n in (1, size) for n, size in zip(attn_mask.shape, full))
            _require(fits, "attn_mask", f"each 1 or that of {full}", attn_mask)
            _require(attn_mask.dtype in (torch.bool, query.dtype), "attn_mask", "bool or query's dtype")
        if key_lengths is not None:
            _integers("key_lengths", key_lengths)
            _shape("key_lengths", key_lengths, rows[:1])
    _require(0 <= dropout_p < 1, "dropout_p", "a probability in [0, 1)")
    if dropout_p > 0:
        is_seed = seed is not None and seed.dtype == torch.int64 and seed.dim() == 0
        _require(is_seed, "dropout_seed", "an int64 scalar since dropout_p > 0")
    _same_device(inputs)


def check_gradients(
    inputs: tuple[Tensor | None, ...],
    grad_out: Tensor,
    of_gates: tuple[Tensor | None, Tensor | None],
    saved: tuple[Tensor, ...],
    *,
    row_dtype: torch.dtype,
    column_gate: bool,
) -> None:
    """Checks what only the backward has. Branch outputs that were not saved are empty.

    Args:
        inputs: as for `check_inputs`, which they have passed.
        of_gates: the gradients of the two gates.
        saved: what the forward gave, in the schema's order.
        row_dtype: of what is kept for each row.

    Raises:
        ValueError: as for `check_inputs`.
    """
    query, key, gate_lambda = inputs[0], inputs[1], inputs[5]
    softmax_out, quasi_out, row_max, row_sum, query_gate, key_gate = saved
    _of_query("grad_out", grad_out, query, query.shape)
    for name, t in (("softmax_out", softmax_out), ("quasi_out", quasi_out)):
        if t.numel():
            _of_query(name, t, query, query.shape)
    kept = [("row_max", row_max, query), ("row_sum", row_sum, query)]
    if gate_lambda is None:
        of_keys = key if column_gate else query
        kept += [("query_gate", query_gate, query), ("key_gate", key_gate, of_keys)]
        kept += [("grad_query_gate", of_gates[0], query), ("grad_key_gate", of_gates[1], of_keys)]
    for name, t, wide in kept:
        if t is not None:
            _shape(name, t, wide.shape[:-1])
            _require(t.dtype == row_dtype, name, str(row_dtype).removeprefix("torch."))
    _same_device((query, grad_out, *of_gates, *saved))


def _require(holds: bool, name: str, wanted: str, got: Tensor | None = None) -> None:
    if not holds:
        shape = "" if got is None else f"got shape {_text(got.shape)}, "
        raise ValueError(f"{name}: {shape}wanted {wanted}")


def _shape(name: str, t: Tensor, *wanted: tuple[int, ...]) -> None:
    if t.shape not in wanted:
        raise ValueError(f"{name}: got shape {_text(t.shape)}, wanted {' or '.join(map(_text, wanted))}")


def _of_query(name: str, t: Tensor, query: Tensor, *wanted: tuple[int, ...]) -> None:
    _shape(name, t, *wanted)
    _require(t.dtype == query.dtype, name, "query's dtype")


def _integers(name: str, t: Tensor) -> None:
    _require(t.dim() == 1 and t.dtype in _INTEGERS, name, "one dimension of int32 or int64")


def _check_offsets(cu_seqlens: Tensor, tokens: int, max_seqlen: int) -> None:
    """Their values, where that costs nothing: a GPU would wait, and its kernels clamp them."""
    if cu_seqlens.device.type != "cpu":
        return
    offsets = cu_seqlens.tolist()
    lengths = [stop - start for start, stop in itertools.pairwise(offsets)]
    fit = offsets[0] == 0 and offsets[-1] == tokens and min(lengths, default=0) >= 0
    _require(fit, "cu_seqlens", f"offsets that never decrease from 0 to {tokens}")
    _require(max(lengths, default=0) <= max_seqlen, "cu_seqlens", f"no sequence longer than max_seqlen, {max_seqlen}")


def _same_device(tensors: Iterable[Tensor | None]) -> None:
    devices = {t.device for t in tensors if t is not None}
    if len(devices) > 1:
        raise ValueError(f"wanted all tensors on one device, got {' and '.join(sorted(map(str, devices)))}")


def _text(sizes: Iterable[int]) -> str:
    return f"({', '.join(map(str, sizes))})"

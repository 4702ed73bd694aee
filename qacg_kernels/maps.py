"""The attention maps themselves, on demand, for looking at."""

import torch
from torch import Tensor

from qacg_kernels.backends import reference
from qacg_kernels.gate import GateParameters
from qacg_kernels.problem import dense_problem, has_values

# What `reference.maps` takes of a problem, in its order, and what of it has a row for each query.
_MAPPED = (
    *("query", "key", "context_query", "context_key", "gate_lambda", "gate_query", "gate_context_query"),
    *("gate_key", "gate_context_key", "gate_query_bias", "gate_key_bias"),
)
_OF_QUERIES = ("query", "context_query", "gate_lambda")


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
    dropout_seed: Tensor | None = None,
    rows: Tensor | list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes the maps that `quasi_attention` never stores; plain PyTorch, differentiable any number of times.

    Args:
        rows: query positions (int64 tensor or list) to compute; all L when None. Memory is that of
            len(rows) x S maps.
        Others: as for `quasi_attention`. With dropout_p > 0 a `dropout_seed` is needed, the one that the call
        to be looked at was given.

    Returns:
        A = Z o (P + lambda G), P, lambda G, each (B, H, L or len(rows), S) in query's dtype (float32 for
        16-bit inputs), and lambda (B, H, rows), or (B, H, rows, S) for a column gate.

    Raises:
        TypeError, ValueError: as for `quasi_attention`; rows outside 0 to L - 1; dropout without a seed.
    """
    if dropout_p > 0 and dropout_seed is None:
        raise ValueError("dropout_seed: got None, wanted the seed of the call (draw_dropout_seed) since dropout_p > 0")
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
        dropout_seed=dropout_seed,
    )
    tensors = {name: getattr(p, name) for name in _MAPPED}
    mask = p.attn_mask
    if rows is not None:
        rows = _checked_rows(rows, query)
        for name in _OF_QUERIES:
            tensors[name] = None if tensors[name] is None else tensors[name][:, :, rows]
        if mask is not None and mask.shape[2] != 1:
            mask = mask[:, :, rows]
    dtype = reference.row_dtype(query)
    promoted = [None if t is None else t.to(dtype) for t in tensors.values()]
    options = p.options()
    options.pop("max_seqlen")
    m = reference.maps(*promoted, mask, p.key_lengths, p.dropout_seed, **options, rows=rows)
    lam = m.gate if p.column_gate else m.gate[..., 0]
    return m.combined(), m.softmax, m.gate * m.quasi, lam


def _checked_rows(rows: Tensor | list[int], query: Tensor) -> Tensor:
    rows = torch.as_tensor(rows, dtype=torch.int64, device=query.device)
    length = query.shape[2]
    if rows.dim() != 1:
        raise ValueError(f"rows: got shape {tuple(rows.shape)}, wanted one dimension")
    if rows.numel() and has_values(rows) and (rows.min() < 0 or rows.max() >= length):
        raise ValueError(f"rows: got positions {int(rows.min())} to {int(rows.max())}, wanted 0 to {length - 1}")
    return rows

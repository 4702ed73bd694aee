"""Plain softmax attention: torch's scaled_dot_product_attention, our operator with a gate of 0, or its equations."""

import torch
from torch import Tensor
from torch.nn import functional as F

from qacg_kernels import quasi_attention

# The first is the default of the models.
IMPLEMENTATIONS = ("sdpa", "fused", "eager")


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout_p: float,
    implementation: str,
    want_map: bool,
) -> tuple[Tensor, Tensor | None]:
    """A V with A = dropout(softmax(Q K^T / sqrt(D))).

    Args:
        query, key, value: (B, H, L, D) each. A query that sees no key gives 0.
        mask: None, or boolean, True where attention is allowed, broadcastable to (B, H, L, L).
        dropout_p: probability, 0 outside training.
        implementation: one of IMPLEMENTATIONS. "fused" makes two maps, one of them for nothing, and yet on the CPU
            its backward is the faster one for sentences, by more in bfloat16; at inference, and wherever the
            operator has no compiled kernel, "sdpa" is.
        want_map: also return A. It is then computed by its equations whatever the implementation, since the
            others have no map, so that A and the output show the same dropped cells.

    Returns:
        The output (B, H, L, D), and A after dropout (B, H, L, L) or None.
    """
    if implementation == "sdpa" and not want_map:
        return _sdpa(query, key, value, mask, dropout_p), None
    if implementation == "fused" and not want_map:
        # Any context scores do, and what is detached gets no gradients of 0 added.
        context = query.detach(), key.detach()
        gate = query.new_zeros(query.shape[:3])
        return quasi_attention(query, key, value, *context, gate, attn_mask=mask, dropout_p=dropout_p), None
    weights = F.dropout(softmax_map(query, key, mask), dropout_p, training=dropout_p > 0)
    return weights @ value, weights if want_map else None


def softmax_map(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(D)), (B, H, L, S); the row of a query that sees no key is 0. Arguments as above."""
    scores = query * query.shape[-1] ** -0.5 @ key.transpose(-1, -2)
    if mask is None:
        return scores.softmax(-1)
    # The lowest finite number, then zeros: with -inf a row without visible keys would be NaN, not 0.
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0.0)


def _sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float) -> Tensor:
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout_p)
    # Not every kernel behind this call gives zeros for a row without visible keys: such a row sees all keys
    # there, and is cleared.
    blind = ~mask.any(-1, keepdim=True)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask | blind, dropout_p=dropout_p)
    return out.masked_fill(blind, 0.0)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, L, H D) to (B, H, L, D), a view."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, L, D) to (B, L, H D)."""
    return x.transpose(1, 2).flatten(-2)

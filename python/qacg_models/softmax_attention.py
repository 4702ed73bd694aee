"""Plain softmax attention: torch's scaled_dot_product_attention, or its equations."""

import torch
from torch import Tensor
from torch.nn import functional as F


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
        implementation: "sdpa" or "eager".
        want_map: also return A. It is then computed by its equations whatever the implementation, since sdpa
            has no map, so that A and the output show the same dropped cells.

    Returns:
        The output (B, H, L, D), and A after dropout (B, H, L, L) or None.
    """
    if implementation == "sdpa" and not want_map:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout_p), None
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if mask is None:
        weights = scores.softmax(-1)
    else:
        # The lowest finite number, then zeros: with -inf a row without visible keys would be NaN, not 0.
        lowest = torch.finfo(scores.dtype).min
        weights = scores.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0.0)
    weights = F.dropout(weights, dropout_p, training=dropout_p > 0)
    return weights @ value, weights if want_map else None


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, L, H D) to (B, H, L, D), a view."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, L, D) to (B, L, H D)."""
    return x.transpose(1, 2).flatten(-2)

"""Softmax attention by PyTorch's fused operator, quasi-attention or plain operations.

Quasi-attention with a gate of 0 is softmax attention.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from qacg_kernels import quasi_attention, quasi_attention_varlen
from qacg_kernels.backends import cpu
from qacg_models.modules.packing import Packing

# The first is the default of BERT, CG-BERT and Aspect-BERT.
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
    """Returns A V with A = dropout(softmax(Q K^T / sqrt(D))), and A on request.

    Args:
        query: (B, H, L, D). The result of a query that sees no key is 0.
        key: (B, H, S, D).
        value: (B, H, S, D).
        mask: None, or boolean, True where attention is allowed, broadcastable to (B, H, L, S).
        dropout_p: dropout probability of A, 0 outside training.
        implementation: "sdpa" (PyTorch's fused operator), "fused" (`quasi_attention` with a gate of 0) or "eager"
            (plain operations). For sequences as short as sentences, the backward of "fused" is faster on the CPU than
            that of "sdpa". "sdpa" is faster at inference, and where there is no compiled kernel.
        want_map: also return A. Plain operations then compute A and the output, whatever the implementation, so that
            both have the same dropped entries.

    Returns:
        The output (B, H, L, D), and A after dropout (B, H, L, S) or None.
    """
    if implementation == "sdpa" and not want_map:
        return _sdpa(query, key, value, mask, dropout_p), None
    if implementation == "fused" and not want_map:
        # With a gate of 0 any context gives the same result. Detaching avoids adding gradients of 0.
        context = query.detach(), key.detach()
        gate = query.new_zeros(query.shape[:3])
        return quasi_attention(query, key, value, *context, gate, attn_mask=mask, dropout_p=dropout_p), None
    weights = F.dropout(softmax_map(query, key, mask), dropout_p, training=dropout_p > 0)
    return weights @ value, weights if want_map else None


def softmax_map(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Returns softmax(Q K^T / sqrt(D)), (B, H, L, S).

    The row of a query that sees no key is 0.

    Args:
        query: (B, H, L, D).
        key: (B, H, S, D).
        mask: None, or boolean and broadcastable to the result, True where attention is allowed.
    """
    scores = query * query.shape[-1] ** -0.5 @ key.transpose(-1, -2)
    if mask is None:
        return scores.softmax(-1)
    # Hidden scores are the lowest finite number, since -inf would give NaN in a row without visible keys.
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0.0)


def _sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float) -> Tensor:
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout_p)
    # Not every kernel returns 0 for a row without visible keys: such rows see all keys and are set to 0 afterwards.
    blind = ~mask.any(-1, keepdim=True)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask | blind, dropout_p=dropout_p)
    return out.masked_fill(blind, 0.0)


def attend_split(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Packing | Tensor | None,
    *,
    dropout_p: float,
    implementation: str,
    want_map: bool,
) -> tuple[Tensor, Tensor | None]:
    """Returns A V, and A on request, for padded heads (B, L, H, D) or packed heads (T, H, D).

    A is dropout(softmax(Q K^T / sqrt(D))) within each sequence; the result of a query that sees no key is 0.

    Args:
        query: (B, L, H, D), or (T, H, D) with a packing.
        key: of the same shape as query.
        value: of the same shape as query.
        layout: the packing; or booleans broadcastable to (B, H, L, L), True where attention is allowed; or None for no
            mask.
        dropout_p: dropout probability of A, 0 outside training.
        implementation: "sdpa", "fused" or "eager"; see `softmax_attention`.
        want_map: also return A.

    Returns:
        The output (B, L, H D) or (T, H D), and A (B, H, L, L), or None without want_map. For a packed batch L is
        max_seqlen, and A is 0 where the query or the key is beyond the length of the sequence.
    """
    options = {"dropout_p": dropout_p, "implementation": implementation, "want_map": want_map}
    if isinstance(layout, Packing):
        out, attention = _packed_attention(query, key, value, layout, **options)
        return out.flatten(-2), attention
    out, attention = softmax_attention(*(x.transpose(1, 2) for x in (query, key, value)), layout, **options)
    return merge_heads(out), attention


def _packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packing: Packing,
    *,
    dropout_p: float,
    implementation: str,
    want_map: bool,
) -> tuple[Tensor, Tensor | None]:
    """Computes softmax attention within each sequence of a packed batch.

    Returns A V (T, H, D), and A on request.

    Without `want_map`, "fused" calls `quasi_attention_varlen` with a gate of 0. So does "sdpa" for float32 and bfloat16
    on the CPU, if the compiled kernel is available: for short sequences this is two to four times as fast as padding
    the batch for scaled_dot_product_attention. All other calls pad the batch.
    """
    fused = implementation == "fused" or (implementation == "sdpa" and _has_kernel(query))
    if fused and not want_map:
        out = quasi_attention_varlen(
            query,
            key,
            value,
            # With a gate of 0 any context gives the same result. Detaching avoids adding gradients of 0.
            query.detach(),
            key.detach(),
            query.new_zeros(query.shape[:2]),
            cu_seqlens=packing.cu_seqlens,
            max_seqlen=packing.max_seqlen,
            dropout_p=dropout_p,
        )
        return out, None
    out, attention = softmax_attention(
        *(packing.pad(x).transpose(1, 2) for x in (query, key, value)),
        packing.pairs(),
        dropout_p=dropout_p,
        implementation=implementation,
        want_map=want_map,
    )
    return packing.unpad(out.transpose(1, 2)), attention


def _has_kernel(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16) and not cpu.missing()


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Returns x (B, L, H D) as (B, H, L, D), a view."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Returns x (B, H, L, D) as (B, L, H D)."""
    return x.transpose(1, 2).flatten(-2)

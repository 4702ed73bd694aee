"""The bias of the context scores, one value per query (MATH.md, eq. 2)."""

from typing import Literal

import torch
from torch import Tensor

from qacg_kernels.call.masks import hides
from qacg_kernels.call.problem import row_dtype

# The argument that selects the bias -log n_i for query i, where n_i is the number of keys that query i sees.
MINUS_LOG_KEYS: Literal["-log(keys)"] = "-log(keys)"
QuasiBias = float | Tensor | Literal["-log(keys)"]


def bias_of_keys(
    query: Tensor, key: Tensor, attn_mask: Tensor | None, key_lengths: Tensor | None, is_causal: bool
) -> Tensor:
    """The bias -log n_i of each query i of a dense call; 0 if the query sees no key.

    Without an additive mask, n_i is the number of keys that query i sees. With one, n_i is the sum of exp(m) over the
    mask's values m of these keys, so a key with m = -10000 practically does not count.

    Args:
        query: (B, H, L, D).
        key: (B, H, S, D).
        attn_mask: None, or boolean or additive with four dimensions, each of full size or of size 1.
        key_lengths: None, or (B,) int32 or int64.
        is_causal: whether query i attends to keys j <= i only.

    Returns:
        A tensor with three dimensions that broadcast to (B, H, L), in the dtype `row_dtype(query)`.
    """
    queries, keys, dtype, device = query.shape[2], key.shape[2], row_dtype(query), query.device
    positions = torch.arange(queries, device=device)
    if attn_mask is None:
        seen = torch.full((1, 1, 1), keys, dtype=torch.int64, device=device)
        if key_lengths is not None:
            seen = torch.minimum(seen, key_lengths.view(-1, 1, 1))
        if is_causal:
            seen = torch.minimum(seen, positions + 1)
        return -seen.clamp(min=1).to(dtype).log()
    if keys == 0:
        return torch.zeros((1, 1, 1), dtype=dtype, device=device)
    mask, j = attn_mask.expand(-1, -1, -1, keys), torch.arange(keys, device=device)
    of_each_query = mask.shape[2] != 1
    hidden = ~mask if mask.dtype == torch.bool else hides(mask)
    if key_lengths is not None:
        hidden = hidden | (j >= key_lengths.view(-1, 1, 1, 1))
    if is_causal and of_each_query:
        hidden = hidden | (j > positions.unsqueeze(1))
    logs = torch.zeros_like(mask, dtype=dtype) if mask.dtype == torch.bool else mask.to(dtype)
    logs = logs.masked_fill(hidden, -torch.inf)
    if is_causal and not of_each_query:
        log_seen = logs.logcumsumexp(-1)[:, :, 0].index_select(-1, positions.clamp(max=keys - 1))
    else:
        log_seen = logs.logsumexp(-1)
    return -log_seen.masked_fill(log_seen == -torch.inf, 0.0)


def bias_of_packed_keys(query: Tensor, cu_seqlens: Tensor, is_causal: bool) -> Tensor:
    """The bias -log n_i of each token i of a packed call, where n_i is the number of keys that token i sees.

    Args:
        query: (T, H, D).
        cu_seqlens: (N + 1,), the offsets of the sequences.
        is_causal: whether query i attends to keys j <= i of its sequence only.

    Returns:
        (T, 1), in the dtype `row_dtype(query)`.
    """
    token = torch.arange(query.shape[0], device=query.device)
    offsets = cu_seqlens.long()
    after = torch.searchsorted(offsets, token, right=True).clamp(1, max(offsets.shape[0] - 1, 1))
    start, stop = offsets[after - 1], offsets[after]
    seen = (token + 1 if is_causal else stop) - start
    return -seen.clamp(min=1).to(row_dtype(query)).log().unsqueeze(1)

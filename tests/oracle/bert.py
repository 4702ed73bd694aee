"""Self-attention of BERT by its formulas: one head, one query at a time, in the dtype of the weights."""

import math

import torch
from oracle.pieces import linear, softmax_row


def self_attention(w, x, visible, heads, head_mask=None):
    """Returns the attended values (L, hidden) and A (H, L, L).

    x: (L, hidden). visible: (L) booleans for keys.

    head_mask: None or (H), by which the maps of the heads are multiplied.
    """
    size = x.shape[1] // heads
    q, k, v = (linear(w, name, x) for name in ("query", "key", "value"))
    outs, maps = [], []
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        rows = [softmax_row((k[:, part] * one).sum(-1) / math.sqrt(size), visible) for one in q[:, part]]
        maps.append(torch.stack(rows) * (1 if head_mask is None else head_mask[h]))
        outs.append(maps[-1] @ v[:, part])
    return torch.cat(outs, -1), torch.stack(maps)

"""BERT by its formulas: one sequence, one head, one query at a time, in the dtype of the weights."""

import math

import torch
from oracle.pieces import below, blocks_after_attention, embed, linear, pool, softmax_row, together


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


def encode(w, ids, visible, types, *, layers, heads, pooler=None, head_mask=None, eps=1e-12):
    """The encoder without dropout.

    ids, types: (B, L) integers. visible: (B, L) booleans. pooler: None for no pooled output. head_mask: None or
    (layers, H).
    Returns a dict: pooled, and lists over layers hidden (embeddings first) and a, batched.
    """
    results = []
    for one_ids, one_visible, one_types in zip(ids, visible, types):
        x = embed(below(w, "bert.embeddings."), one_ids, one_types, eps)
        out = {"hidden": [x], "a": []}
        for n in range(layers):
            layer = below(w, f"bert.encoder.layer.{n}.")
            kept = None if head_mask is None else head_mask[n]
            attended, a = self_attention(below(layer, "attention.self."), x, one_visible, heads, kept)
            x = blocks_after_attention(layer, attended, x, eps)
            out["hidden"].append(x)
            out["a"].append(a)
        if pooler is not None:
            out["pooled"] = pool(below(w, "bert.pooler."), x, one_visible, pooler)
        results.append(out)
    return together(results)

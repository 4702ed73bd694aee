"""CG-BERT by its formulas: one sequence, one head, one query at a time, in the dtype of the weights."""

import math

import torch
from oracle.pieces import (
    below,
    blocks_after_attention,
    embed,
    gate_logit,
    linear,
    pool,
    sigmoid,
    softmax_row,
    together,
)


def tanh(x):
    return 2 * sigmoid(2 * x) - 1


def self_attention(w, x, c, visible, *, heads, head_projection, gate):
    """Returns the attended values (L, hidden), A (H, L, L), and the gates of queries and of keys (H, L).

    x, c: hidden states and context, (L, hidden). visible: (L) booleans for keys."""
    size = x.shape[1] // heads
    act = {"sigmoid": sigmoid, "tanh": tanh}[gate]
    q, k, v = (linear(w, name, x) for name in ("query", "key", "value"))
    outs, maps, query_gates, key_gates = [], [], [], []
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        if head_projection:
            cq, ck = linear(w, "context_for_q", c[:, part]), linear(w, "context_for_k", c[:, part])
        else:
            cq, ck = linear(w, "context_for_q", c)[:, part], linear(w, "context_for_k", c)[:, part]
        lq = act(gate_logit(w, "lambda_q_query_layer", h, q[:, part]) + gate_logit(w, "lambda_q_context_layer", h, cq))
        lk = act(gate_logit(w, "lambda_k_key_layer", h, k[:, part]) + gate_logit(w, "lambda_k_context_layer", h, ck))
        mixed_q = torch.stack([(1 - g) * a + g * b for g, a, b in zip(lq, q[:, part], cq)])
        mixed_k = torch.stack([(1 - g) * a + g * b for g, a, b in zip(lk, k[:, part], ck)])
        rows = [softmax_row((mixed_k * one).sum(-1) / math.sqrt(size), visible) for one in mixed_q]
        maps.append(torch.stack(rows))
        outs.append(maps[-1] @ v[:, part])
        query_gates.append(lq)
        key_gates.append(lk)
    return torch.cat(outs, -1), torch.stack(maps), torch.stack(query_gates), torch.stack(key_gates)


def classify(w, ids, visible, types, contexts, *, layers, heads, pooler, head_projection, gate="sigmoid", eps=1e-12):
    """The classifier without dropout.

    ids, types: (B, L) integers. visible: (B, L) booleans. contexts: (B) integers.
    Returns a dict: logits, pooled, and lists over layers hidden (embeddings first), a, lq, lk, batched.
    """
    results = []
    for one_ids, one_visible, one_types, context in zip(ids, visible, types, contexts):
        x = embed(below(w, "bert.embeddings."), one_ids, one_types, eps)
        ec = w["bert.context_embeddings.weight"][int(context)].expand_as(x)
        out = {"hidden": [x], "a": [], "lq": [], "lk": []}
        for n in range(layers):
            layer = below(w, f"bert.encoder.layer.{n}.")
            c = linear(w, f"bert.encoder.context_layer.{n}", torch.cat([ec, x], -1)) + ec
            attended, *found = self_attention(
                below(layer, "attention.self."),
                x,
                c,
                one_visible,
                heads=heads,
                head_projection=head_projection,
                gate=gate,
            )
            x = blocks_after_attention(layer, attended, x, eps)
            for name, value in zip(("hidden", "a", "lq", "lk"), (x, *found)):
                out[name].append(value)
        out["pooled"] = pool(below(w, "bert.pooler."), x, one_visible, pooler)
        out["logits"] = linear(w, "classifier", out["pooled"])
        results.append(out)
    return together(results)

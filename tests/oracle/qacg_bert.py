"""QACG-BERT by its formulas: one sequence, one head, one query at a time, in the weights' dtype.

Imports nothing of this project except the formulas that its oracles share. Weights come as a dict from checkpoint
name to tensor, in float64 for a reference. Differentiable by autograd.
"""

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


def self_attention(w, x, c, visible, *, heads, head_projection, alpha=1.0, bias=0.0, beta=1.0, gamma=1.0, keep=None):
    """Quasi-attention of one sequence.

    x, c: hidden states and context, (L, hidden). visible: (L) booleans for keys.
    bias: number that is added to the context scores, or "-log(keys)".
    keep: (H, L, L), factors on A.
    Returns output (L, hidden), A, P, lambda * G, each (H, L, L), lambda (H, L).
    """
    length, hidden = x.shape
    size = hidden // heads
    q, k, v = (linear(w, name, x) for name in ("query", "key", "value"))
    added = -math.log(int(visible.sum())) if bias == "-log(keys)" else bias
    columns = [slice(h * size, (h + 1) * size) for h in range(heads)]
    outs, every_a, every_p, every_g, every_lam = [], [], [], [], []
    for h, part in enumerate(columns):
        if head_projection:
            cq, ck = linear(w, "context_for_q", c[:, part]), linear(w, "context_for_k", c[:, part])
        else:
            cq, ck = linear(w, "context_for_q", c)[:, part], linear(w, "context_for_k", c)[:, part]
        lq = sigmoid(
            gate_logit(w, "lambda_q_query_layer", h, q[:, part]) + gate_logit(w, "lambda_q_context_layer", h, cq)
        )
        lk = sigmoid(
            gate_logit(w, "lambda_k_key_layer", h, k[:, part]) + gate_logit(w, "lambda_k_context_layer", h, ck)
        )
        lam = 1 - (beta * lq + gamma * lk)
        p_rows, g_rows = [], []
        for i in range(length):
            t = (k[:, part] * q[i, part]).sum(-1) / math.sqrt(size)
            tc = (ck * cq[i]).sum(-1) / math.sqrt(size) + added
            p_rows.append(softmax_row(t, visible))
            g_rows.append(lam[i] * alpha * sigmoid(tc) * visible)
        p, g = torch.stack(p_rows), torch.stack(g_rows)
        a = p + g if keep is None else (p + g) * keep[h]
        outs.append(a @ v[:, part])
        every_a.append(a)
        every_p.append(p)
        every_g.append(g)
        every_lam.append(lam)
    maps = (torch.stack(every_a), torch.stack(every_p), torch.stack(every_g))
    return torch.cat(outs, -1), *maps, torch.stack(every_lam)


def classify(w, ids, visible, types, contexts, *, layers, heads, pooler, head_projection, eps=1e-12, **scalars):
    """The classifier without dropout.

    ids, types: (B, L) integers. visible: (B, L) booleans. contexts: (B) integers.
    scalars: alpha, bias, beta, gamma.
    Returns a dict: logits, pooled, and per layer lists hidden (embeddings first), a, p, g, lam, batched.
    """
    batch = [
        classify_one(
            w,
            *one,
            layers=layers,
            heads=heads,
            pooler=pooler,
            head_projection=head_projection,
            eps=eps,
            scalars=scalars,
        )
        for one in zip(ids, visible, types, contexts)
    ]
    return together(batch)


def classify_one(w, ids, visible, types, context, *, layers, heads, pooler, head_projection, eps, scalars):
    x = embed(below(w, "bert.embeddings."), ids, types, eps)
    ec = w["bert.context_embeddings.weight"][int(context)].expand_as(x)
    out = {"hidden": [x], "a": [], "p": [], "g": [], "lam": []}
    for n in range(layers):
        layer = below(w, f"bert.encoder.layer.{n}.")
        c = linear(w, f"bert.encoder.context_layer.{n}", torch.cat([ec, x], -1)) + ec
        attended, a, p, g, lam = self_attention(
            below(layer, "attention.self."),
            x,
            c,
            visible,
            heads=heads,
            head_projection=head_projection,
            **scalars,
        )
        x = blocks_after_attention(layer, attended, x, eps)
        for name, value in (("hidden", x), ("a", a), ("p", p), ("g", g), ("lam", lam)):
            out[name].append(value)
    out["pooled"] = pool(below(w, "bert.pooler."), x, visible, pooler)
    out["logits"] = linear(w, "classifier", out["pooled"])
    return out

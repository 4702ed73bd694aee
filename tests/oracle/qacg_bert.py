"""QACG-BERT from its formulas alone: one sequence, one head, one query at a time, in the weights' dtype.

Imports nothing of this project. Weights come as a dict from checkpoint name to tensor; give float64 for a
truth to measure errors against. Differentiable by autograd.
"""

import math

import torch


def linear(w, name, x):
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def layer_norm(w, name, x, eps):
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def gate_logit(w, name, head, x):
    """x . v + b of a gate layer whose weight is (1, D), or (H, D) with one row per head."""
    weight = w[f"{name}.weight"]
    row = head if weight.shape[0] > 1 else 0
    logit = (x * weight[row]).sum(-1)
    return logit + w[f"{name}.bias"][row] if f"{name}.bias" in w else logit


def self_attention(w, x, c, visible, *, heads, head_projection, alpha=1.0, beta=1.0, gamma=1.0, keep=None):
    """Quasi-attention of one sequence.

    x, c: hidden states and context, (L, hidden). visible: (L) booleans for keys.
    keep: (H, L, L), factors on A.
    Returns output (L, hidden), A, P, lambda * G, each (H, L, L), lambda (H, L).
    """
    length, hidden = x.shape
    size = hidden // heads
    q, k, v = (linear(w, name, x) for name in ("query", "key", "value"))
    columns = [slice(h * size, (h + 1) * size) for h in range(heads)]
    outs, every_a, every_p, every_g, every_lam = [], [], [], [], []
    for h, part in enumerate(columns):
        if head_projection:
            cq, ck = linear(w, "context_for_q", c[:, part]), linear(w, "context_for_k", c[:, part])
        else:
            cq, ck = linear(w, "context_for_q", c)[:, part], linear(w, "context_for_k", c)[:, part]
        lq = sigmoid(
            gate_logit(w, "lambda_q_query_layer", h, q[:, part])
            + gate_logit(w, "lambda_q_context_layer", h, cq)
        )
        lk = sigmoid(
            gate_logit(w, "lambda_k_key_layer", h, k[:, part])
            + gate_logit(w, "lambda_k_context_layer", h, ck)
        )
        lam = 1 - (beta * lq + gamma * lk)
        p_rows, g_rows = [], []
        for i in range(length):
            t = (k[:, part] * q[i, part]).sum(-1) / math.sqrt(size)
            tc = (ck * cq[i]).sum(-1) / math.sqrt(size)
            if visible.any():
                e = torch.exp(t - t[visible].max()) * visible
                p_rows.append(e / e.sum())
            else:
                p_rows.append(torch.zeros_like(t))
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


def below(w, prefix):
    return {name[len(prefix) :]: t for name, t in w.items() if name.startswith(prefix)}


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def classify(
    w, ids, visible, types, contexts, *, layers, heads, pooler, head_projection, eps=1e-12, **scalars
):
    """The classifier without dropout.

    ids, types: (B, L) integers. visible: (B, L) booleans. contexts: (B) integers.
    scalars: alpha, beta, gamma.
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
    together = {name: torch.stack([one[name] for one in batch]) for name in ("logits", "pooled")}
    for name in ("hidden", "a", "p", "g", "lam"):
        together[name] = [torch.stack(per_layer) for per_layer in zip(*(one[name] for one in batch))]
    return together


def classify_one(w, ids, visible, types, context, *, layers, heads, pooler, head_projection, eps, scalars):
    e = below(w, "bert.embeddings.")
    x = torch.stack(
        [
            e["word_embeddings.weight"][token]
            + e["position_embeddings.weight"][i]
            + e["token_type_embeddings.weight"][t]
            for i, (token, t) in enumerate(zip(ids.tolist(), types.tolist()))
        ]
    )
    x = layer_norm(e, "LayerNorm", x, eps)
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
        x = layer_norm(
            layer, "attention.output.LayerNorm", linear(layer, "attention.output.dense", attended) + x, eps
        )
        wide = gelu(linear(layer, "intermediate.dense", x))
        x = layer_norm(layer, "output.LayerNorm", linear(layer, "output.dense", wide) + x, eps)
        for name, value in (("hidden", x), ("a", a), ("p", p), ("g", g), ("lam", lam)):
            out[name].append(value)
    if pooler == "cls":
        summary = x[0]
    else:
        narrow = linear(w, "bert.pooler.attention_gate.0", x)
        score = linear(w, "bert.pooler.attention_gate.3", narrow * (narrow > 0))[:, 0]
        weight = torch.exp(score - score[visible].max()) * visible
        summary = (weight / weight.sum()) @ x
    out["pooled"] = torch.tanh(linear(w, "bert.pooler.dense", summary))
    out["logits"] = linear(w, "classifier", out["pooled"])
    return out

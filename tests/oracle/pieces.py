"""Formulas that the oracles of several models share, for one sequence.

Imports nothing of this project. Weights come as a dict from checkpoint name to tensor, in float64 for a reference.
Differentiable by autograd.
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


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def softmax_row(t, visible):
    """softmax over the visible of t (S); 0 elsewhere, and everywhere if nothing is visible."""
    if not visible.any():
        return torch.zeros_like(t)
    e = torch.exp(t - t[visible].max()) * visible
    return e / e.sum()


def gate_logit(w, name, head, x):
    """x . v + b of a gate layer whose weight is (1, D), or (H, D) with one row per head."""
    weight = w[f"{name}.weight"]
    row = head if weight.shape[0] > 1 else 0
    logit = (x * weight[row]).sum(-1)
    return logit + w[f"{name}.bias"][row] if f"{name}.bias" in w else logit


def context_heads(w, c, part, head_projection):
    """Context query and context key of one head, (L, D), whose columns are `part`, from the context c (L, hidden)."""
    if head_projection:
        return linear(w, "context_for_q", c[:, part]), linear(w, "context_for_k", c[:, part])
    return linear(w, "context_for_q", c)[:, part], linear(w, "context_for_k", c)[:, part]


def below(w, prefix):
    return {name[len(prefix) :]: t for name, t in w.items() if name.startswith(prefix)}


def embed(w, ids, types, eps):
    """Embeddings (L, hidden) of ids and types (L)."""
    x = torch.stack(
        [
            w["word_embeddings.weight"][token]
            + w["position_embeddings.weight"][i]
            + w["token_type_embeddings.weight"][t]
            for i, (token, t) in enumerate(zip(ids.tolist(), types.tolist()))
        ]
    )
    return layer_norm(w, "LayerNorm", x, eps)


def blocks_after_attention(layer, attended, x, eps):
    """Returns the output of a layer from its attended values and its input, (L, hidden) each."""
    x = layer_norm(layer, "attention.output.LayerNorm", linear(layer, "attention.output.dense", attended) + x, eps)
    wide = gelu(linear(layer, "intermediate.dense", x))
    return layer_norm(layer, "output.LayerNorm", linear(layer, "output.dense", wide) + x, eps)


def pool(w, x, visible, pooler):
    """Pools (L, hidden) to (hidden)."""
    if pooler == "cls":
        summary = x[0]
    else:
        narrow = linear(w, "attention_gate.0", x)
        score = linear(w, "attention_gate.3", narrow * (narrow > 0))[:, 0]
        summary = softmax_row(score, visible) @ x
    return torch.tanh(linear(w, "dense", summary))


def cross_entropy(logits, labels):
    """Mean over rows of logits (N, C) whose label is at least 0; 0 if there is none."""
    terms = [torch.log(torch.exp(row).sum()) - row[label] for row, label in zip(logits, labels) if label >= 0]
    return sum(terms) / len(terms) if terms else (logits * 0).sum()


def span_loss_as_published(starts, ends, start_positions, end_positions):
    """Mean of the cross-entropies of start and end, for logits (B, L).

    Positions are clamped to 0 and L. Positions at L are left out of the mean; without other positions it is NaN."""
    losses = []
    for logits, positions in ((starts, start_positions), (ends, end_positions)):
        length = logits.shape[1]
        cut = [min(max(p, 0), length) for p in positions]
        terms = [torch.log(torch.exp(row).sum()) - row[p] for row, p in zip(logits, cut) if p != length]
        losses.append(sum(terms) / len(terms) if terms else (logits * math.nan).sum())
    return sum(losses) / 2


def together(results):
    """Joins dicts of single sequences (tensors, or lists of tensors over layers) to one dict of batches."""
    first = results[0]
    joined = {}
    for name, value in first.items():
        if isinstance(value, torch.Tensor):
            joined[name] = torch.stack([one[name] for one in results])
        else:
            joined[name] = [torch.stack(layer) for layer in zip(*(one[name] for one in results))]
    return joined

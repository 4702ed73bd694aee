"""BertSum's layers by their formulas: one document, one head, one query at a time.

Weights come as a dict from checkpoint name to tensor, in float64 for a reference. Differentiable by autograd.
"""

import math

import torch
from oracle.pieces import below, layer_norm, linear

EPS = 1e-6


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def heads_of(x, heads):
    """Splits (L, model) into a list of (L, D)."""
    size = x.shape[-1] // heads
    return [x[:, h * size : (h + 1) * size] for h in range(heads)]


def row_without_hidden_keys(t, seen):
    """softmax over the visible scores of t (T); 0 elsewhere, and everywhere if none is visible."""
    row = torch.zeros_like(t)
    if seen.any():
        e = torch.exp(t[seen] - t[seen].detach().max())
        row = row.masked_scatter(seen, e / e.sum())
    return row


def row_as_published(t, seen):
    """softmax over all scores of t (T), with -1e18 for keys that are not visible."""
    t = torch.where(seen, t, torch.full_like(t, -1e18))
    e = torch.exp(t - t.detach().max())
    return e / e.sum()


def attend(queries, keys, values, hidden, graph=None, softmax=row_without_hidden_keys):
    """Returns the outputs (H, L, D) of one document.

    queries, keys, values: lists over heads of (L, D), (T, D), (T, D). hidden: (L, T) booleans. graph: None or (L, T),
    for the last head. softmax: one of the two functions above.
    """
    outs = []
    for h, (q, k, v) in enumerate(zip(queries, keys, values)):
        rows = []
        for i in range(q.shape[0]):
            row = softmax((k * (q[i] / math.sqrt(q.shape[-1]))).sum(-1), ~hidden[i])
            if graph is not None and h == len(queries) - 1:
                kept = row * graph[i]
                row = kept / (kept.sum() + 1e-9)
            rows.append(row)
        outs.append(torch.stack(rows) @ v)
    return torch.stack(outs)


def multi_headed_attention(
    w,
    key,
    value,
    query,
    hidden,
    *,
    heads,
    graph=None,
    past=None,
    softmax=row_without_hidden_keys,
):
    """A batch. hidden: (B, L, T) booleans; graph: None or (B, L, T).

    past: keys and values (B, H, T, D) of earlier steps; keys and values are then projected from the query.
    Returns output (B, L, model), unmerged heads (B, H, L, D), and keys and values (B, H, T, D).
    """
    found = {name: [] for name in ("out", "heads", "keys", "values")}
    for b in range(query.shape[0]):
        q = heads_of(linear(w, "linear_query", query[b]), heads)
        sources = (query[b], query[b]) if past is not None else (key[b], value[b])
        k = heads_of(linear(w, "linear_keys", sources[0]), heads)
        v = heads_of(linear(w, "linear_values", sources[1]), heads)
        if past is not None:
            k = [torch.cat(pair) for pair in zip(past[0][b], k)]
            v = [torch.cat(pair) for pair in zip(past[1][b], v)]
        out = attend(q, k, v, hidden[b], None if graph is None else graph[b], softmax)
        merged = torch.cat(list(out), -1)
        found["out"].append(linear(w, "final_linear", merged) if "final_linear.weight" in w else merged)
        for name, t in (("heads", out), ("keys", torch.stack(k)), ("values", torch.stack(v))):
            found[name].append(t)
    return {name: torch.stack(ts) for name, ts in found.items()}


def feed_forward(w, x):
    return x + linear(w, "w_2", gelu_tanh(linear(w, "w_1", layer_norm(w, "layer_norm", x, EPS))))


def position(i, dim):
    """The sinusoids of position i, one number at a time."""
    return torch.tensor(
        [
            math.sin(i / 10000 ** (c / dim)) if c % 2 == 0 else math.cos(i / 10000 ** ((c - 1) / dim))
            for c in range(dim)
        ],
        dtype=torch.float64,
    )


def encoder_layer(w, number, x, sentence, *, heads, softmax=row_without_hidden_keys):
    """x: (S, model); sentence: (S) booleans, True for a sentence. Returns (S, model)."""
    normed = x if number == 0 else layer_norm(w, "layer_norm", x, EPS)
    hidden = (~sentence).expand(len(sentence), -1).unsqueeze(0)
    batch = normed.unsqueeze(0)
    found = multi_headed_attention(below(w, "self_attn."), batch, batch, batch, hidden, heads=heads, softmax=softmax)
    return feed_forward(below(w, "feed_forward."), x + found["out"][0])


def inter_encoder(w, top_vecs, sentence, *, heads, layers, softmax=row_without_hidden_keys):
    """top_vecs: (B, S, model); sentence: (B, S) booleans. Scores and logits (B, S)."""
    every_logit = []
    for vectors, real in zip(top_vecs, sentence):
        table = torch.stack([position(i, vectors.shape[-1]) for i in range(len(real))]).to(vectors.dtype)
        x = vectors * real.unsqueeze(-1) + table
        for n in range(layers):
            x = encoder_layer(below(w, f"transformer_inter.{n}."), n, x, real, heads=heads, softmax=softmax)
        every_logit.append(linear(w, "wo", layer_norm(w, "layer_norm", x, EPS))[:, 0])
    logits = torch.stack(every_logit)
    scores = sentence / (1 + torch.exp(-logits))
    return {"scores": scores, "logits": logits}


def sentence_loss(logits, labels, counted):
    """Mean binary cross-entropy of the counted sentences."""
    total, n = 0.0, 0
    for logit, label in zip(logits[counted], labels[counted]):
        p = 1 / (1 + torch.exp(-logit))
        total, n = total - torch.log(p if label else 1 - p), n + 1
    return total / n

"""The head of Query Attention by its formulas: one question with its text, one token at a time.

Weights come as a dict from parameter name to tensor, hidden states from any encoder, in float64 for a reference.
Differentiable by autograd.
"""

import torch
from oracle.pieces import gelu, linear


def convolve(w, name, x):
    """A convolution of odd width over (L, C), zeros beyond both ends."""
    weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
    half = weight.shape[-1] // 2
    rows = []
    for i in range(len(x)):
        total = bias
        for k in range(weight.shape[-1]):
            j = i + k - half
            if 0 <= j < len(x):
                total = total + weight[:, :, k] @ x[j]
        rows.append(total)
    return torch.stack(rows)


def mean_of_the_question(w, hidden, question):
    asked = [linear(w, "query_layer", h) for h, is_question in zip(hidden, question) if is_question]
    return sum(asked) / len(asked)


def mean_as_published(w, hidden, question):
    """The mean over the whole length; tokens outside the question enter the layer as zeros."""
    asked = [
        linear(w, "query_layer", h if is_question else torch.zeros_like(h)) for h, is_question in zip(hidden, question)
    ]
    return sum(asked) / len(asked)


def head(w, hidden, question, visible, mean=mean_of_the_question):
    """One sequence. hidden: (L, size); question, visible: (L) booleans. mean: either of the two above.

    Returns start and end logits (L), question-type logits, and the attention a (L).
    """
    q = mean(w, hidden, question)
    scores = torch.stack([(linear(w, "key_layer", h) * q).sum() for h in hidden])
    e = torch.exp(scores - scores[visible].detach().max()) * visible
    a = e / e.sum()
    x = torch.stack([a[i] * linear(w, "value_layer", h) for i, h in enumerate(hidden)])
    if "conv1d_layer1.weight" in w:
        maps = [convolve(w, f"conv1d_layer{k}", x) for k in (1, 3, 5)]
        x = torch.cat([m * (m > 0) for m in maps], -1)
    else:
        x = gelu(x)
    ends = linear(w, "classify_layer", x)
    return ends[:, 0], ends[:, 1], linear(w, "query_classify_layer", q), a


def run(w, hidden, question, visible, mean=mean_of_the_question):
    """A batch, stacked: start_logits, end_logits, query_logits, query_attention."""
    rows = [head(w, *one, mean) for one in zip(hidden, question, visible)]
    names = ("start_logits", "end_logits", "query_logits", "query_attention")
    return {name: torch.stack(ts) for name, ts in zip(names, zip(*rows))}


def cross_entropy(logits, labels):
    """Mean over the rows whose label is a column of `logits`."""
    rows = [torch.log(torch.exp(x).sum()) - x[y] for x, y in zip(logits, labels) if 0 <= y < len(x)]
    return sum(rows) / len(rows)


def loss(found, starts, ends, types, weight):
    span = (cross_entropy(found["start_logits"], starts) + cross_entropy(found["end_logits"], ends)) / 2
    return span + weight * cross_entropy(found["query_logits"], types)

"""Self-attention of CG-BERT by its formulas: one head, one query at a time, in the dtype of the weights."""

import math

import torch
from oracle.pieces import context_heads, gate_logit, linear, sigmoid, softmax_row


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
        cq, ck = context_heads(w, c, part, head_projection)
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

"""Self-attention of QACG-BERT by its formulas: one head, one query at a time, in the dtype of the weights."""

import math

import torch
from oracle.pieces import context_heads, gate_logit, linear, sigmoid, softmax_row


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
        cq, ck = context_heads(w, c, part, head_projection)
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

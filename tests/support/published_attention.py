"""The attention of the published models in plain PyTorch, for tests of the fused modules."""

import math

import torch
from torch import nn

from qacg_kernels.attention_layers import NAMINGS

BATCH, LENGTH, HIDDEN, HEADS = 2, 5, 12, 3
HEAD_DIM = HIDDEN // HEADS
VISIBLE = torch.tensor([[True] * LENGTH, [True, True, True, False, False]])


class PublishedAttention(nn.Module):
    """The attention of QACG-BERT, in both published namings and all published shapes."""

    def __init__(self, naming="released", projection="hidden", bias=True, dropout=0.1):
        super().__init__()
        sizes = {
            **dict.fromkeys(("query", "key", "value"), (HIDDEN, HIDDEN, True)),
            **dict.fromkeys(
                ("context_query", "context_key"),
                (HIDDEN, HIDDEN, True) if projection == "hidden" else (HEAD_DIM, HEAD_DIM, True),
            ),
            **dict.fromkeys(("gate_query", "gate_context_query", "gate_key", "gate_context_key"), (HEAD_DIM, 1, bias)),
        }
        self.names = NAMINGS[naming]
        self.projection = projection
        for role, (size_in, size_out, with_bias) in sizes.items():
            self.add_module(self.names[role], nn.Linear(size_in, size_out, bias=with_bias))
        self.dropout = nn.Dropout(dropout)
        self.quasi_act = nn.Sigmoid()

    def apply_layer(self, role, x):
        return getattr(self, self.names[role])(x)

    def drop(self, x):
        return self.dropout(x)

    def heads(self, x):
        return x.reshape(*x.shape[:2], HEADS, -1).permute(0, 2, 1, 3)

    def context_heads(self, role, context):
        if self.projection == "head":
            return self.drop(self.apply_layer(role, self.heads(context)))
        return self.drop(self.heads(self.apply_layer(role, context)))

    def forward(self, hidden_states, attention_mask, device=None, C_embed=None):
        q, k, v = (self.heads(self.apply_layer(r, hidden_states)) for r in ("query", "key", "value"))
        cq, ck = (self.context_heads(r, C_embed) for r in ("context_query", "context_key"))
        p = ((q @ k.mT) / math.sqrt(HEAD_DIM) + attention_mask).softmax(-1)
        g = self.quasi_act((cq @ ck.mT) / math.sqrt(HEAD_DIM) + attention_mask)
        lq = self.quasi_act(self.apply_layer("gate_query", q) + self.apply_layer("gate_context_query", cq))
        lk = self.quasi_act(self.apply_layer("gate_key", k) + self.apply_layer("gate_context_key", ck))
        lam = 1 - (lq + lk)
        a = self.drop(p + lam * g)
        out = (a @ v).permute(0, 2, 1, 3).reshape(hidden_states.shape)
        return out, a, p, lam * g, lam


class ContextGuidedAttention(PublishedAttention):
    """The attention of CG-BERT, which has the same layers with the same names, but another formula."""

    def forward(self, hidden_states, attention_mask, device=None, C_embed=None):
        q, k, v = (self.heads(self.apply_layer(r, hidden_states)) for r in ("query", "key", "value"))
        cq, ck = (self.context_heads(r, C_embed) for r in ("context_query", "context_key"))
        lq = self.quasi_act(self.apply_layer("gate_query", q) + self.apply_layer("gate_context_query", cq))
        lk = self.quasi_act(self.apply_layer("gate_key", k) + self.apply_layer("gate_context_key", ck))
        q, k = (1 - lq) * q + lq * cq, (1 - lk) * k + lk * ck
        p = self.dropout(((q @ k.mT) / math.sqrt(HEAD_DIM) + attention_mask).softmax(-1))
        return (p @ v).permute(0, 2, 1, 3).reshape(hidden_states.shape), p, p, p, lq


class PublishedBlock(nn.Module):
    """Calls the forward method of its attention with positional arguments, like the published block."""

    def __init__(self, attention):
        super().__init__()
        self.self = attention
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, x, mask, device, context):
        results = self.self.forward(x, mask, device, context)
        out, *rest = results if isinstance(results, tuple) else (results,)
        return self.norm(x + out), *rest


class PublishedModel(nn.Module):
    """Clones the four maps of every layer, like the published encoder."""

    def __init__(self, *, attention=PublishedAttention, layers=2, **kwargs):
        super().__init__()
        self.layer = nn.ModuleList(PublishedBlock(attention(**kwargs)) for _ in range(layers))

    def forward(self, x, mask, context):
        collected = []
        for layer in self.layer:
            x, *maps = layer(x, mask, x.device, context)
            collected.append([m.clone() for m in maps])
        return x, collected


def inputs(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, c = torch.randn(2, BATCH, LENGTH, HIDDEN, generator=generator).to(dtype)
    return x.requires_grad_(), c.requires_grad_()


def additive(dtype=torch.float32):
    return torch.where(VISIBLE, 0.0, -10000.0)[:, None, None, :].to(dtype)

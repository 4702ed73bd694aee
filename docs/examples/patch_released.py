"""Replaces the attention layers of a model whose parameters have the names of QACG-BERT's released code."""

import torch
from torch import nn

import qacg_kernels as qk

HIDDEN, HEADS = 64, 4


class ContextSelfAttention(nn.Module):
    """Eager quasi-attention; unlike the released code, it has no dropout on context queries and context keys."""

    def __init__(self):
        super().__init__()
        for name in ("query", "key", "value", "context_for_q", "context_for_k"):
            setattr(self, name, nn.Linear(HIDDEN, HIDDEN))
        for name in ("q_context", "q_query", "k_context", "k_key"):
            setattr(self, f"lambda_{name}_layer", nn.Linear(HIDDEN // HEADS, 1, bias=False))
        self.dropout = nn.Dropout(0.1)

    def heads(self, x):
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def forward(self, hidden_states, attention_mask, device=None, context=None):
        q, k, v = (self.heads(layer(hidden_states)) for layer in (self.query, self.key, self.value))
        qc, kc = (self.heads(layer(context)) for layer in (self.context_for_q, self.context_for_k))
        scale = q.shape[-1] ** -0.5
        softmax = torch.softmax(q @ k.mT * scale + attention_mask, -1)
        gate_q = torch.sigmoid(self.lambda_q_context_layer(qc) + self.lambda_q_query_layer(q))
        gate_k = torch.sigmoid(self.lambda_k_context_layer(kc) + self.lambda_k_key_layer(k))
        lam = 1 - (gate_q + gate_k)
        quasi = lam * torch.sigmoid(qc @ kc.mT * scale + attention_mask)
        out = (self.dropout(softmax + quasi) @ v).transpose(1, 2).flatten(2)
        return out, softmax + quasi, softmax, quasi, lam


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(ContextSelfAttention() for _ in range(layers))

    def forward(self, states, mask, context):
        for layer in self.layers:
            states = states + layer(states, mask, context=context)[0]
        return states


def main():
    model = Model().eval()
    states, context, mask = torch.randn(2, 16, HIDDEN), torch.randn(2, 16, HIDDEN), torch.zeros(2, 1, 1, 16)
    before = model(states, mask, context)
    replaced = qk.apply_fused_attention(model)
    difference = (model(states, mask, context) - before).abs().max().item()
    print(f"{replaced} modules replaced; largest difference of the outputs {difference:.1e}")
    return replaced, difference


if __name__ == "__main__":
    main()

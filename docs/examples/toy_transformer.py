"""Trains a small transformer whose attention has a context: python docs/examples/toy_transformer.py

The task: a sequence has two kinds of symbols, and the context selects the kind to count.
"""

import torch
from torch import nn

import qacg_kernels as qk

KINDS, SYMBOLS, LENGTH, WIDTH = 2, 4, 12, 32


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols = nn.Embedding(KINDS * SYMBOLS, WIDTH)
        self.contexts = nn.Embedding(KINDS, WIDTH)
        self.attention = qk.FusedQuasiAttention(hidden_size=WIDTH, num_heads=4)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))

    def forward(self, tokens, kind):
        states = self.symbols(tokens)
        context = self.contexts(kind)[:, None].expand_as(states)
        mask = torch.ones(len(tokens), 1, 1, tokens.shape[1], dtype=torch.bool)
        states = self.norm(states + context + self.attention(states, mask, context=context)[0])
        return self.head(states).sum((1, 2))


def batch(size):
    tokens = torch.randint(0, KINDS * SYMBOLS, (size, LENGTH))
    kind = torch.randint(0, KINDS, (size,))
    return tokens, kind, (tokens // SYMBOLS == kind[:, None]).sum(1).float()


def main(steps=200):
    torch.manual_seed(0)
    model = Counter()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        tokens, kind, counts = batch(128)
        loss = nn.functional.mse_loss(model(tokens, kind), counts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: mean squared error {loss.item():.3f}")
    tokens, kind, counts = batch(1000)
    error = (model(tokens, kind) - counts).abs().mean().item()
    print(f"after {steps} steps: mean absolute error {error:.2f} of the count among {LENGTH} symbols")
    return error


if __name__ == "__main__":
    main()

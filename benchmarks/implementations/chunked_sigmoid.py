"""Sigmoid attention in chunks, with library matrix products: one half of the composition on a CPU.

Equations 3, 8 and 11 of MATH.md without softmax, gate and dropout. Only one chunk of the map exists at a time, and the
backward computes it again.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Attention entries of a chunk: 4 MiB in float32, so that a chunk stays in the cache.
_ENTRIES = 1 << 20


def sigmoid_attention(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Returns sigmoid(query keyᵀ / sqrt(D)) value; `hidden`, (B, S), is True at masked keys, None without any."""
    batch, heads = query.shape[:2]
    if hidden is not None:
        hidden = hidden.repeat_interleave(heads, 0).unsqueeze(1)
    out = _SigmoidAttention.apply(query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), hidden)
    return out.unflatten(0, (batch, heads))


def _chunks(query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yields the slice of maps and the slice of query rows of each chunk.

    A chunk consists of one or more whole maps if a map has at most _ENTRIES entries, else of some rows of one map.
    """
    maps, length, keys = len(query), query.shape[1], key.shape[1]
    at_once = max(1, _ENTRIES // (length * keys))
    rows = length if length * keys <= _ENTRIES else max(1, _ENTRIES // keys)
    for first in range(0, maps, at_once):
        for row in range(0, length, rows):
            yield slice(first, first + at_once), slice(row, row + rows)


def _sigmoid_map(query: Tensor, key: Tensor, hidden: Tensor | None) -> Tensor:
    scale = query.shape[-1] ** -0.5
    scores = torch.baddbmm(query.new_empty(1), query, key.transpose(1, 2), beta=0, alpha=scale)
    visible = scores.sigmoid_()
    return visible if hidden is None else visible.masked_fill_(hidden, 0.0)


def _product(total: Tensor, a: Tensor, b: Tensor, first: bool = True, scale: float = 1.0) -> None:
    """Writes scale * a b to `total` for the first chunk, and adds it to `total` for later chunks."""
    if total.dtype == a.dtype:
        total.baddbmm_(a, b, beta=0 if first else 1, alpha=scale)
    elif first:
        torch.mul(torch.bmm(a, b), scale, out=total)
    else:
        total.add_(torch.bmm(a, b), alpha=scale)


class _SigmoidAttention(torch.autograd.Function):
    """`sigmoid_attention` for query (N, L, D), key and value (N, S, D), and hidden (N, 1, S)."""

    @staticmethod
    def forward(ctx, query, key, value, hidden):
        ctx.save_for_backward(query, key, value, hidden)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for n, i in _chunks(query, key):
            gate = _sigmoid_map(query[n, i], key[n], None if hidden is None else hidden[n])
            _product(out[n, i], gate, value[n])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        query, key, value, hidden = ctx.saved_tensors
        scale = query.shape[-1] ** -0.5
        grad_query = torch.empty_like(query, memory_format=torch.contiguous_format)
        # Sums over several chunks are in float32, since repeated rounding to 16 bits would lose the last bits.
        sums = query.dtype if query.shape[1] * key.shape[1] <= _ENTRIES else torch.float32
        grad_key, grad_value = (torch.empty(t.shape, dtype=sums, device=t.device) for t in (key, value))
        for n, i in _chunks(query, key):
            first = i.start == 0
            gate = _sigmoid_map(query[n, i], key[n], None if hidden is None else hidden[n])
            _product(grad_value[n], gate.transpose(1, 2), grad[n, i], first)
            grad_gate = torch.bmm(grad[n, i], value[n].transpose(1, 2))
            grad_scores = torch.ops.aten.sigmoid_backward(grad_gate, gate)
            _product(grad_query[n, i], grad_scores, key[n], scale=scale)
            _product(grad_key[n], grad_scores.transpose(1, 2), query[n, i], first, scale)
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), None

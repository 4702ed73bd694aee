"""Initial weights of the context projections of a model that has none."""

import math

import torch
from qacg_models.training.context_start import copy_projections

from qacg_kernels.nn import ContextAttention


@torch.no_grad()
def start_context_projections(attention: ContextAttention, keys: float | None) -> None:
    """Copies the projections of queries and keys to those of context queries and context keys.

    With `keys`, biases add -log(keys) to the scaled scores, so that a row of the quasi-attention map has about the sum
    of a softmax row (Ramapuram et al., 2024, arXiv:2409.04431). For this, each head gives up the feature with the
    smallest weights: they become 0, and its bias becomes b in the query and -b in the key. So this feature adds -b^2 to
    every score before scaling.

    Args:
        attention: a module whose context projection is "hidden".
        keys: expected number of keys of a row; if None, the projections are only copied.
    """
    copy_projections(attention)
    if keys is None:
        return
    query, key = (attention.layer(f"context_{role}") for role in ("query", "key"))
    size = attention.hidden_size // attention.num_heads
    norms = (query.weight.norm(dim=1) * key.weight.norm(dim=1)).view(attention.num_heads, size)
    features = norms.argmin(1) + size * torch.arange(attention.num_heads)
    bias = math.sqrt(math.log(keys) * math.sqrt(size))
    for layer, value in ((query, bias), (key, -bias)):
        layer.weight[features] = 0.0
        layer.bias[features] = value

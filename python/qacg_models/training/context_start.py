"""The start of quasi-attention in a model from a checkpoint without contexts.

With random weights an aspect is a vector of norm 0.4 beside hidden states of norm 9, the quasi-attention map is almost
the same for all keys, and lambda is 0, so that the context projections get no gradients. A start from the names of the
aspects is better (docs/explanation/many-aspects.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from qacg_models.checkpoints.fitting import CONTEXTS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from qacg_kernels.nn import ContextAttention
    from qacg_models.checkpoints.source import Source
    from qacg_models.models.qacg_bert import QACGBertForSequenceClassification

# Lambda starts at 0.1, where the context projections get gradients.
NAMES_FIELDS = {"beta": 0.9, "gamma": 0.9}
# Number of texts, evenly spaced, whose average length is that of all.
MEASURED_TEXTS = 1_000


def has_contexts(source: Source) -> bool:
    """Returns whether a checkpoint has aspects of its own."""
    return CONTEXTS in source.tensors


def average_length(texts: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> float:
    """Returns the average number of tokens of texts, special tokens included."""
    chosen = list(texts[:: max(1, len(texts) // MEASURED_TEXTS)])
    return sum(map(len, tokenizer(chosen)["input_ids"])) / len(chosen)


@torch.no_grad()
def start_from_names(model: QACGBertForSequenceClassification, tokenizer: PreTrainedTokenizerFast, keys: float) -> None:
    """Sets what the layers read as context, in place of random weights.

    The vector of an aspect is the average state of its name's tokens in layer `context_from_layer`, scaled to the
    average norm of these states. Context layers and context projections: see `start_context_layer` and
    `start_context_projections`.

    Args:
        model: from a checkpoint without contexts, with `config.contexts` and the context projection "hidden".
        tokenizer: of the checkpoint.
        keys: average number of tokens of a text.
    """
    bert, config = model.bert, model.config
    names = tokenizer(
        list(config.contexts),
        padding=True,
        truncation=True,
        max_length=config.max_position_embeddings,
        return_special_tokens_mask=True,
        return_tensors="pt",
    )
    tokens = names["attention_mask"].bool() & ~names["special_tokens_mask"].bool()
    visible = names["attention_mask"].bool()[:, None, None, :]
    was_training = model.training
    model.eval()
    states = bert.encoder.plain_layers(bert.embeddings(names["input_ids"]), visible, False)[0][-1]
    model.train(was_training)
    weights = tokens / tokens.sum(1, keepdim=True).clamp(min=1)
    means = (weights.unsqueeze(1) @ states).squeeze(1)
    norm = states[tokens].norm(dim=1).mean()
    bert.context_embeddings.weight.copy_(functional.normalize(means) * norm)
    first = bert.encoder.first
    for layer, context_layer in zip(bert.encoder.layer[first:], bert.encoder.context_layer[first:]):
        start_context_layer(context_layer)
        start_context_projections(layer.attention.self, keys)


@torch.no_grad()
def start_context_layer(layer: nn.Linear) -> None:
    """Sets a context layer so that the context of a token is its hidden state plus the aspect's vector, c = X + Ec."""
    layer.weight.zero_()
    layer.weight[:, layer.out_features :].fill_diagonal_(1.0)  # of [Ec ; X]
    layer.bias.zero_()


@torch.no_grad()
def start_context_projections(attention: ContextAttention, keys: float | None) -> None:
    """Copies the projections of queries and keys to those of context queries and context keys.

    With `keys`, biases add -log(keys) to the scaled scores, so that a row of the quasi-attention map has about the sum
    of a softmax row (Ramapuram et al., 2024, arXiv:2409.04431). In each head they take the feature whose weights are
    smallest, which then has no other weights: biases b and -b there add -b^2 to every score.

    Args:
        attention: with the context projection "hidden".
        keys: expected number of keys of a row; None adds nothing.
    """
    copies = []
    for role in ("query", "key"):
        copies.append(attention.layer(f"context_{role}"))
        copies[-1].load_state_dict(attention.layer(role).state_dict())
    if keys is None:
        return
    query, key = copies
    size = attention.hidden_size // attention.num_heads
    norms = (query.weight.norm(dim=1) * key.weight.norm(dim=1)).view(attention.num_heads, size)
    rows = norms.argmin(1) + size * torch.arange(attention.num_heads)
    bias = math.sqrt(math.log(max(keys, 1.0)) * math.sqrt(size))
    for layer, value in ((query, bias), (key, -bias)):
        layer.weight[rows] = 0.0
        layer.bias[rows] = value

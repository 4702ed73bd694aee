"""Initial weights for aspects, computed from the names of the aspects, for a checkpoint that has no aspects.

With random weights, the model uses the aspect only after many steps: the aspect's vector has norm 0.4, and hidden
states have norm 10. The context projections get almost no gradient while lambda is near 0
(docs/explanation/many-aspects.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from qacg_models.checkpoints.names import CONTEXTS
from qacg_models.modules.encoder import ContextBertEncoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from qacg_kernels.attention_layers import ContextAttention
    from qacg_models.checkpoints.files import Source
    from qacg_models.models.context_bert import ContextBertForSequenceClassification

# Lambda starts at 0.1, so that the context projections get gradients. The bias keeps the sum of a row of the
# quasi-attention map near 1, the sum of a softmax row.
NAMES_FIELDS = {"quasi_bias": "-log(keys)", "beta": 0.9, "gamma": 0.9}


def has_contexts(source: Source) -> bool:
    """Returns whether a checkpoint has vectors of aspects."""
    return CONTEXTS in source.tensors


@torch.no_grad()
def start_from_names(model: ContextBertForSequenceClassification, tokenizer: PreTrainedTokenizerFast) -> None:
    """Replaces the random weights through which a model reads aspects, in the layers from `context_from_layer` on.

    - The vector of an aspect is the mean hidden state of the tokens of its name, at the input of layer
      `context_from_layer`. All vectors are scaled to the same norm: the mean norm of these hidden states, over the
      names of all aspects.
    - Each context layer of QACG-BERT is set to add that vector to the hidden states (c = X + Ec).
    - The projections of context queries and context keys in QACG-BERT become copies of those of queries and keys.

    Args:
        model: QACG-BERT or Aspect-BERT from a checkpoint without contexts, with `config.contexts`; for QACG-BERT with
            the context projection "hidden".
        tokenizer: tokenizer of the checkpoint.
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
    if not isinstance(bert.encoder, ContextBertEncoder):  # Aspect-BERT has no further new weights
        return
    for layer, context_layer in zip(bert.encoder.layer[first:], bert.encoder.context_layer[first:]):
        start_context_layer(context_layer)
        copy_projections(layer.attention.self)


@torch.no_grad()
def start_context_layer(layer: nn.Linear) -> None:
    """Sets a context layer, whose input is [Ec ; X], to return the hidden states X.

    The model adds the aspect's vector Ec to the output, so that the context is c = X + Ec.
    """
    layer.weight.zero_()
    layer.weight[:, layer.out_features :].fill_diagonal_(1.0)  # the columns of X in the input [Ec ; X]
    layer.bias.zero_()


def copy_projections(attention: ContextAttention) -> None:
    """Copies the projections of queries and keys to those of context queries and context keys.

    Args:
        attention: attention with the context projection "hidden".
    """
    for role in ("query", "key"):
        attention.layer(f"context_{role}").load_state_dict(attention.layer(role).state_dict())

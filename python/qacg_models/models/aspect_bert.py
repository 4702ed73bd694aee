"""Aspect-BERT: BERT that adds the context embedding to the hidden states of one layer.

The input of layer k = `config.context_from_layer` is X + Ec, where X are the hidden states of the tokens and Ec is the
embedding of the context. Everything else is BERT. The layers below k do not depend on the context, so they can run once
per text for all its contexts. docs/explanation/many-aspects.md compares the model with QACG-BERT.
"""

from typing import Any

from transformers.modeling_outputs import BaseModelOutputWithPooling, SequenceClassifierOutput

from qacg_models.layers.encoder import AspectBertEncoder
from qacg_models.models.context_bert import (
    ContextBertForSequenceClassification,
    ContextBertModel,
    ContextFromLayerConfig,
)


class AspectBertConfig(ContextFromLayerConfig):
    """Configuration of Aspect-BERT: sizes, contexts, and the layer to whose input the context embedding is added.

    Args:
        **kwargs: fields of `ContextFromLayerConfig`, `ContextConfig` and `EncoderConfig`.

    Example:
        >>> AspectBertConfig(contexts=["price", "service"], num_labels=3, context_from_layer=11).context_id("service")
        1
    """

    model_type = "aspect_bert"

    def __init__(self, **kwargs: Any):  # documented and checked in the base classes
        super().__init__(**kwargs)


class AspectBertModel(ContextBertModel):
    """Aspect-BERT without a head: embeddings, encoder and pooler.

    Args:
        config: sizes, contexts, and the layer that reads the context.

    Example:
        >>> import torch
        >>> from qacg_models import AspectBertConfig
        >>> config = AspectBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> model = AspectBertModel(config).eval()
        >>> model(torch.tensor([[1, 2, 3]]), context_ids=torch.tensor([0])).pooler_output.shape
        torch.Size([1, 32])
    """

    config: AspectBertConfig
    output_class = BaseModelOutputWithPooling
    map_fields = ("attentions",)
    gate_fields = ()

    def new_encoder(self, config: AspectBertConfig) -> AspectBertEncoder:
        """Builds the encoder."""
        return AspectBertEncoder(config)


class AspectBertForSequenceClassification(ContextBertForSequenceClassification):
    """Aspect-BERT with a linear classifier on the pooled output.

    Args:
        config: sizes, contexts, and the layer that reads the context; `num_labels` or `id2label` gives the classes.

    Example:
        >>> import torch
        >>> from qacg_models import AspectBertConfig
        >>> config = AspectBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> model = AspectBertForSequenceClassification(config).eval()
        >>> model(torch.tensor([[1, 2, 3]]), context_ids=torch.tensor([0])).logits.shape
        torch.Size([1, 2])
    """

    config: AspectBertConfig
    encoder_class = AspectBertModel
    output_class = SequenceClassifierOutput

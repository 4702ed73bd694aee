"""CG-BERT (Wu and Ong, 2021): BERT whose queries and keys are mixed with a context.

The queries of the self-attention are (1 - gate) Q + gate Qc, and the keys are (1 - gate) K + gate Kc. Qc and Kc are
projections of the context. Queries and keys have separate gates, one per token and head
(`layers/attention.py`).
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling, SequenceClassifierOutput

from qacg_kernels.call.validation import check_choice
from qacg_models.layers.attention import ContextMixingSelfAttention
from qacg_models.models.context_bert import ContextBertForSequenceClassification, ContextBertModel, GatedContextConfig

GATE_ACTIVATIONS = ("sigmoid", "tanh")


class CGBertConfig(GatedContextConfig):
    """Configuration of CG-BERT: sizes, and variants of the context projection and the gates.

    The published code has `context_projection="head", lambda_bias=False`, which are the defaults.

    Args:
        context_projection, lambda_bias: see `GatedContextConfig`.
        gate_activation: "sigmoid" (the published code) or "tanh" (the paper).
        **kwargs: other fields of `GatedContextConfig`, `ContextConfig` and `EncoderConfig`. The published name
            `A_prob_dropout_prob` is read as attention_probs_dropout_prob.

    Example:
        >>> CGBertConfig(contexts=["price", "service"], num_labels=3).context_id("service")
        1
    """

    model_type = "cg_bert"

    def __init__(
        self,
        *,
        context_projection: str = "head",
        lambda_bias: bool = False,
        gate_activation: str = "sigmoid",
        **kwargs: Any,
    ):
        self.gate_activation = gate_activation
        if "A_prob_dropout_prob" in kwargs and "attention_probs_dropout_prob" not in kwargs:
            kwargs["attention_probs_dropout_prob"] = kwargs.pop("A_prob_dropout_prob")
        super().__init__(context_projection=context_projection, lambda_bias=lambda_bias, **kwargs)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first invalid field."""
        super().check()
        check_choice("gate_activation", self.gate_activation, GATE_ACTIVATIONS)


@dataclass
class CGBertModelOutput(BaseModelOutputWithPooling):
    """Output of `CGBertModel`.

    Fields with one entry per layer are None unless requested. In layers below `config.context_from_layer`, the gates
    are 0. In a packed batch, hidden states are (T, hidden_size), gates (T, H), and attention matrices (B, H, L, L) with
    L = max_seqlen, which are 0 beyond the length of a sequence.

    Attributes:
        last_hidden_state: (B, L, hidden_size); None with pooled_only.
        pooler_output: (B, hidden_size).
        hidden_states: (B, L, hidden_size) for the embeddings, then for each layer.
        attentions: the attention matrix after dropout, (B, H, L, L) each.
        query_gates: weight of the context in each query, (B, H, L) each.
        key_gates: weight of the context in each key, (B, H, L) each.

    Example:
        >>> import torch
        >>> CGBertModelOutput(pooler_output=torch.zeros(2, 8)).keys()
        odict_keys(['pooler_output'])
    """

    query_gates: tuple[Tensor, ...] | None = None
    key_gates: tuple[Tensor, ...] | None = None


@dataclass
class CGBertSequenceClassifierOutput(SequenceClassifierOutput):
    """Output of `CGBertForSequenceClassification`.

    Attributes:
        loss: (), see `classification_loss`; None without labels.
        logits: (B, num_labels).
        hidden_states, attentions, query_gates, key_gates: those of `CGBertModelOutput`; None unless requested.

    Example:
        >>> import torch
        >>> CGBertSequenceClassifierOutput(logits=torch.zeros(2, 3)).logits.shape
        torch.Size([2, 3])
    """

    query_gates: tuple[Tensor, ...] | None = None
    key_gates: tuple[Tensor, ...] | None = None


class CGBertModel(ContextBertModel):
    """CG-BERT without a head: embeddings, encoder and pooler.

    Args:
        config: sizes, contexts, context projection and gates; see `CGBertConfig`.

    Example:
        >>> import torch
        >>> from qacg_models import CGBertConfig
        >>> config = CGBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> model = CGBertModel(config).eval()
        >>> output = model(torch.tensor([[1, 2, 3]]), context_ids=torch.tensor([0]), output_gates=True)
        >>> output.pooler_output.shape, output.query_gates[0].shape
        (torch.Size([1, 32]), torch.Size([1, 2, 3]))
    """

    config: CGBertConfig
    self_attention = ContextMixingSelfAttention
    output_class = CGBertModelOutput
    map_fields = ("attentions",)
    gate_fields = ("query_gates", "key_gates")


class CGBertForSequenceClassification(ContextBertForSequenceClassification):
    """CG-BERT with a linear classifier on the pooled output.

    Args:
        config: sizes, contexts, context projection and gates; see `CGBertConfig`. `num_labels` or `id2label` gives
            the classes.

    Example:
        >>> import torch
        >>> from qacg_models import CGBertConfig
        >>> config = CGBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> model = CGBertForSequenceClassification(config).eval()
        >>> model(torch.tensor([[1, 2, 3]]), context_ids=torch.tensor([0])).logits.shape
        torch.Size([1, 2])
    """

    config: CGBertConfig
    encoder_class = CGBertModel
    output_class = CGBertSequenceClassifierOutput

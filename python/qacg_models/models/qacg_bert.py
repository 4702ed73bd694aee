"""QACG-BERT (Wu and Ong, 2021): BERT with a gated sigmoid map added to softmax attention.

The attention matrix is A = softmax(T) + lambda * alpha * sigmoid(Tc) (`qacg_kernels/MATH.md`, eq. 1 to 5 and 7). T are
the scores of queries and keys. Tc are the scores of context queries and context keys. lambda is the gate of each query,
and alpha is `config.quasi_scale`.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling, SequenceClassifierOutput

from qacg_kernels.attention_layers import NAMINGS
from qacg_kernels.call.validation import check_choice, checked_quasi_bias
from qacg_models.layers.attention import QUASI_IMPLEMENTATIONS, QuasiSelfAttention
from qacg_models.models.context_bert import ContextBertForSequenceClassification, ContextBertModel, GatedContextConfig
from qacg_models.utils.fields import check_number


class QACGBertConfig(GatedContextConfig):
    """Configuration of QACG-BERT: sizes, and variants of the pooler, the context projection and the gates.

    The published variants are `pooler="cls", context_projection="hidden", lambda_bias=True` (the released
    code, and the default) and `pooler="attention", context_projection="head", lambda_bias=False`.

    Args:
        context_projection, lambda_bias: see `GatedContextConfig`.
        quasi_scale: alpha, the factor of the quasi-attention map; 1 in the published code.
        quasi_bias: number that is added to the scores of the quasi-attention map (published: 0); or "-log(keys)", which
            adds -log(n) for a query that attends to n keys. With "-log(keys)", a row of the map whose scores are all 0
            sums to quasi_scale * n / (n + 1).
        beta: factor of the query gate in lambda; 1 in the published code.
        gamma: factor of the key gate in lambda; 1 in the published code.
        attention_naming: "released" or "compact", the published names of the attention parameters
            (`qacg_kernels.attention_layers.NAMINGS`). Checkpoints with either naming load.
        **kwargs: other fields of `GatedContextConfig`, `ContextConfig` and `EncoderConfig`. The dropout probability
            `attention_probs_dropout_prob` applies to the attention matrix A, and to context queries and keys.

    Example:
        >>> QACGBertConfig(contexts=["price", "service"], num_labels=3).context_id("service")
        1
    """

    model_type = "qacg_bert"

    def __init__(
        self,
        *,
        context_projection: str = "hidden",
        lambda_bias: bool = True,
        quasi_scale: float = 1.0,
        quasi_bias: float | str = 0.0,
        beta: float = 1.0,
        gamma: float = 1.0,
        attention_naming: str = "released",
        **kwargs: Any,
    ):
        self.quasi_scale = quasi_scale
        self.quasi_bias = quasi_bias
        self.beta = beta
        self.gamma = gamma
        self.attention_naming = attention_naming
        super().__init__(context_projection=context_projection, lambda_bias=lambda_bias, **kwargs)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first invalid field."""
        super().check()
        for field in ("quasi_scale", "beta", "gamma"):
            check_number(field, getattr(self, field))
        checked_quasi_bias(self.quasi_bias)
        check_choice("attention_naming", self.attention_naming, tuple(NAMINGS))


@dataclass
class QACGBertModelOutput(BaseModelOutputWithPooling):
    """Output of `QACGBertModel`.

    Fields with one entry per layer are None unless requested. In layers below `config.context_from_layer`, `quasi_maps`
    and `lambdas` are 0. In a packed batch, hidden states are (T, hidden_size), lambdas (T, H), and maps (B, H, L, L)
    with L = max_seqlen, which are 0 beyond the length of a sequence.

    Attributes:
        last_hidden_state: (B, L, hidden_size); None with pooled_only.
        pooler_output: (B, hidden_size).
        hidden_states: (B, L, hidden_size) for the embeddings, then for each layer.
        attentions: the attention matrix A after dropout, (B, H, L, L) each. Without dropout A = P + lambda * G. A may
            have negative entries.
        softmax_maps: the softmax map P, (B, H, L, L) each.
        quasi_maps: the gated quasi-attention map lambda * G, (B, H, L, L) each, with G = alpha * sigmoid(Tc).
        lambdas: the gate lambda of each query, (B, H, L) each.

    Example:
        >>> import torch
        >>> QACGBertModelOutput(pooler_output=torch.zeros(2, 8)).keys()
        odict_keys(['pooler_output'])
    """

    softmax_maps: tuple[Tensor, ...] | None = None
    quasi_maps: tuple[Tensor, ...] | None = None
    lambdas: tuple[Tensor, ...] | None = None


@dataclass
class QACGBertSequenceClassifierOutput(SequenceClassifierOutput):
    """Output of `QACGBertForSequenceClassification`.

    Attributes:
        loss: (), see `classification_loss`; None without labels.
        logits: (B, num_labels).
        hidden_states, attentions, softmax_maps, quasi_maps, lambdas: those of `QACGBertModelOutput`; None unless
            requested.

    Example:
        >>> import torch
        >>> QACGBertSequenceClassifierOutput(logits=torch.zeros(2, 3)).logits.shape
        torch.Size([2, 3])
    """

    softmax_maps: tuple[Tensor, ...] | None = None
    quasi_maps: tuple[Tensor, ...] | None = None
    lambdas: tuple[Tensor, ...] | None = None


class QACGBertModel(ContextBertModel):
    """QACG-BERT without a head: embeddings, encoder and pooler.

    Args:
        config: sizes, contexts, context projection and gates; see `QACGBertConfig`.

    Example:
        >>> import torch
        >>> from qacg_models import QACGBertConfig
        >>> config = QACGBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> model = QACGBertModel(config).eval()
        >>> output = model(torch.tensor([[1, 2, 3]]), context_ids=torch.tensor([0]), output_gates=True)
        >>> output.pooler_output.shape, output.lambdas[0].shape
        (torch.Size([1, 32]), torch.Size([1, 2, 3]))
    """

    config: QACGBertConfig
    implementations = QUASI_IMPLEMENTATIONS
    self_attention = QuasiSelfAttention
    output_class = QACGBertModelOutput
    map_fields = ("attentions", "softmax_maps", "quasi_maps")
    gate_fields = ("lambdas",)


class QACGBertForSequenceClassification(ContextBertForSequenceClassification):
    """QACG-BERT with a linear classifier on the pooled output.

    Args:
        config: sizes, contexts, context projection and gates; see `QACGBertConfig`. `num_labels` or `id2label` gives
            the classes.

    Example:
        >>> import torch
        >>> from qacg_models import QACGBertConfig
        >>> config = QACGBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> model = QACGBertForSequenceClassification(config).eval()
        >>> model(torch.tensor([[1, 2, 3]]), context_ids=torch.tensor([0])).logits.shape
        torch.Size([1, 2])
    """

    config: QACGBertConfig
    implementations = QUASI_IMPLEMENTATIONS
    encoder_class = QACGBertModel
    output_class = QACGBertSequenceClassifierOutput

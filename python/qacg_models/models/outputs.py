"""What the models with a context return. BERT returns the outputs of transformers."""

from dataclasses import dataclass

from torch import Tensor
from transformers.utils import ModelOutput


@dataclass
class QACGBertModelOutput(ModelOutput):
    """Output of `QACGBertModel`. A tuple has one entry per layer, and is None unless it was asked for.

    Of a packed batch hidden states are (T, hidden_size), lambdas (T, H), and maps (B, H, L, L) with L = max_seqlen
    and 0 beyond the lengths.

    Attributes:
        last_hidden_state: (B, L, hidden_size).
        pooler_output: (B, hidden_size).
        hidden_states: (B, L, hidden_size) each; the embeddings come first, so one more than layers.
        attentions: A after dropout, (B, H, L, L) each. A may be negative.
        softmax_maps: P, (B, H, L, L) each.
        quasi_maps: lambda * G, (B, H, L, L) each. A = P + lambda * G where dropout is off.
        lambdas: (B, H, L) each.
    """

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    softmax_maps: tuple[Tensor, ...] | None = None
    quasi_maps: tuple[Tensor, ...] | None = None
    lambdas: tuple[Tensor, ...] | None = None


@dataclass
class QACGBertSequenceClassifierOutput(ModelOutput):
    """Output of `QACGBertForSequenceClassification`.

    Attributes:
        loss: (), with labels only; see `classification_loss`.
        logits: (B, num_labels).
        hidden_states, attentions, softmax_maps, quasi_maps, lambdas: as in `QACGBertModelOutput`.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    softmax_maps: tuple[Tensor, ...] | None = None
    quasi_maps: tuple[Tensor, ...] | None = None
    lambdas: tuple[Tensor, ...] | None = None


@dataclass
class CGBertModelOutput(ModelOutput):
    """Output of `CGBertModel`. A tuple has one entry per layer, and is None unless it was asked for.

    Of a packed batch hidden states are (T, hidden_size), gates (T, H), and maps (B, H, L, L) with L = max_seqlen
    and 0 beyond the lengths.

    Attributes:
        last_hidden_state: (B, L, hidden_size).
        pooler_output: (B, hidden_size).
        hidden_states: (B, L, hidden_size) each; the embeddings come first, so one more than layers.
        attentions: A after dropout, (B, H, L, L) each.
        query_gates, key_gates: how much of a query or key is the context's, (B, H, L) each.
    """

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    query_gates: tuple[Tensor, ...] | None = None
    key_gates: tuple[Tensor, ...] | None = None


@dataclass
class CGBertSequenceClassifierOutput(ModelOutput):
    """Output of `CGBertForSequenceClassification`.

    Attributes:
        loss: (), with labels only; see `classification_loss`.
        logits: (B, num_labels).
        hidden_states, attentions, query_gates, key_gates: as in `CGBertModelOutput`.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    query_gates: tuple[Tensor, ...] | None = None
    key_gates: tuple[Tensor, ...] | None = None

"""BertSum (Liu, 2019): extractive summarisation by sentence scores, over any encoder.

Every sentence starts with its own [CLS]. A transformer over the hidden states of these tokens scores the sentences.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput, can_return_tuple

from qacg_kernels.call.validation import check_choice
from qacg_kernels.utils.torch_internals import values_readable
from qacg_models.checkpoints.fitting import BERTSUM_ALIASES
from qacg_models.layers.batch import check_ids, check_tensor
from qacg_models.layers.bertsum import BLIND_QUERIES, PositionalEncoding, TransformerInterEncoder
from qacg_models.models.base import IGNORED
from qacg_models.models.encoder_head import EncoderHeadConfig, EncoderHeadModel
from qacg_models.utils.fields import check_integer, check_probability

NO_SENTENCE = -1  # padding in sentence_positions


class BertSumConfig(EncoderHeadConfig):
    """Configuration of BertSum, which scores the sentences of a document, with the published names of its options.

    Args:
        encoder: configuration of the encoder, or its fields with `model_type`; None: transformers' BERT.
        inter_layers: number of transformer layers over sentences; 0: only positions, LayerNorm and a linear classifier.
        heads: number of attention heads in the layers over sentences, a divisor of the encoder's hidden_size.
        ff_size: width of the hidden layer of the feed-forward blocks in the layers over sentences.
        dropout: dropout probability in the layers over sentences.
        blind_queries: output for a query whose keys are all masked, "zeros" or "average"; see `MultiHeadedAttention`.
            Only documents without sentences have such queries, and the scores of these documents are always 0.
        **kwargs: fields of every transformers configuration.

    Example:
        >>> BertSumConfig(inter_layers=1).encoder.model_type
        'bert'
    """

    model_type = "bertsum"

    def __init__(
        self,
        *,
        encoder: PreTrainedConfig | dict | None = None,
        inter_layers: int = 2,
        heads: int = 8,
        ff_size: int = 2048,
        dropout: float = 0.1,
        blind_queries: str = "zeros",
        **kwargs: Any,
    ):
        self.inter_layers = inter_layers
        self.heads = heads
        self.ff_size = ff_size
        self.dropout = dropout
        self.blind_queries = blind_queries
        super().__init__(encoder=encoder, **kwargs)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first invalid field."""
        super().check()
        check_integer("inter_layers", self.inter_layers, 0)
        for field in ("heads", "ff_size"):
            check_integer(field, getattr(self, field), 1)
        check_probability("dropout", self.dropout)
        check_choice("blind_queries", self.blind_queries, BLIND_QUERIES)
        if self.encoder.hidden_size % self.heads:
            raise ValueError(
                f"heads: expected a divisor of the encoder's hidden_size = {self.encoder.hidden_size}, got {self.heads}"
            )


@dataclass
class BertSumOutput(ModelOutput):
    """Output of `BertSumForExtractiveSummarization`.

    Attributes:
        loss: (), mean binary cross-entropy of the labelled sentences; None without labels.
        scores: (B, S), probability that a sentence belongs to the summary; 0 for padding.
        logits: (B, S), the scores before the sigmoid; undefined at padding.
        hidden_states: hidden states of the encoder; None unless requested.
        attentions: attention matrices of the encoder; None unless requested.

    Example:
        >>> import torch
        >>> BertSumOutput(scores=torch.zeros(2, 5)).keys()
        odict_keys(['scores'])
    """

    loss: Tensor | None = None
    scores: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class BertSumForExtractiveSummarization(EncoderHeadModel):
    """Extractive summarisation by BertSum, over any encoder.

    Args:
        config: configuration of the head, whose field `encoder` is the configuration of the encoder.
        encoder: a transformers encoder, which becomes part of the model and whose configuration replaces
            `config.encoder`. Its pooler is removed if its constructor has the argument `add_pooling_layer`. None builds
            an encoder with initial weights from `config.encoder`.

    Example:
        >>> import torch
        >>> from qacg_models import BertSumConfig, PlainBertConfig
        >>> encoder = PlainBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> model = BertSumForExtractiveSummarization(BertSumConfig(encoder=encoder, heads=2, ff_size=64)).eval()
        >>> ids = torch.tensor([[1, 5, 6, 2, 1, 7, 2]])  # two sentences, each between [CLS] = 1 and [SEP] = 2
        >>> model(ids, sentence_positions=torch.tensor([[0, 4]])).scores.shape
        torch.Size([1, 2])
    """

    config: BertSumConfig
    # As in published checkpoints, `bert` is the encoder and `encoder` the transformer over sentences.
    base_model_prefix = "bert"
    card_task = "summarization"
    published_aliases = BERTSUM_ALIASES

    def __init__(self, config: BertSumConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config)
        self._set_encoder(encoder)
        size = config.encoder.hidden_size
        options = (config.ff_size, config.heads, config.dropout, config.inter_layers)
        self.encoder = TransformerInterEncoder(size, *options, blind_queries=config.blind_queries)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PositionalEncoding):
            module.reset_table()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        sentence_positions: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BertSumOutput:
        """Scores the sentences of a padded batch of documents.

        Args:
            input_ids: (B, L) int64 or int32, [CLS] sentence [SEP] [CLS] sentence [SEP] ...
            attention_mask: (B, L), 1 for tokens and 0 for padding; None: no padding.
            token_type_ids: (B, L) int64 or int32; in the published code, 0 and 1 alternate from sentence to sentence.
                None: all 0. An encoder with at most one token type requires None.
            sentence_positions: (B, S) int64 or int32, position of the [CLS] of each sentence; -1 for padding. The
                argument is required, and S is at most 5,000.
            position_ids: (B, L) or (1, L) int64 or int32; None: the default of the encoder. An encoder without this
                argument requires None.
            labels: (B, S), 1 for sentences of the summary, 0 for other sentences, -100 for sentences that the loss
                leaves out; None: no loss.
            output_attentions: return attention matrices of the encoder; None: `config.output_attentions`.
            output_hidden_states: return hidden states of the encoder; None: `config.output_hidden_states`.

        Returns:
            A `BertSumOutput`; with return_dict=False its fields that are not None.

        Raises:
            TypeError: an argument has the wrong type or dtype; the message names it.
            ValueError: an argument has the wrong shape or value, or output_attentions is requested from an attention
                implementation of the encoder that returns no matrices. Values are checked on the CPU and outside
                torch.compile only.
        """
        if not isinstance(sentence_positions, Tensor):
            got = type(sentence_positions).__name__
            raise TypeError(f"sentence_positions: expected a torch.Tensor (B, S), got {got}")
        if isinstance(input_ids, Tensor) and input_ids.dim() == 2 and input_ids.shape[1]:  # else `encode` raises
            batch, length = input_ids.shape
            padding = (NO_SENTENCE, "padding")
            check_ids("sentence_positions", sentence_positions, (batch, "S"), length, other=padding)
        if token_type_ids is not None and not self.takes_token_types:
            name = type(self.base_model).__name__
            raise ValueError(f"token_type_ids: expected None, since {name} has at most one token type, got a tensor")
        encoded, _ = self.encode(
            input_ids, attention_mask, token_type_ids, position_ids, output_attentions, output_hidden_states
        )
        hidden = encoded.last_hidden_state
        sentence = sentence_positions >= 0
        places = sentence_positions.long().clamp_min(0).unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        logits = self.encoder.logits(hidden.gather(1, places), sentence)
        return BertSumOutput(
            loss=None if labels is None else sentence_loss(logits, labels, sentence),
            scores=logits.sigmoid() * sentence,
            logits=logits,
            hidden_states=encoded.hidden_states or None,
            attentions=encoded.attentions or None,
        )


def sentence_loss(logits: Tensor, labels: Tensor, sentence: Tensor) -> Tensor:
    """Returns the mean binary cross-entropy of the labelled sentences; 0 without any. All arguments are (B, S)."""
    check_tensor("labels", labels, "a torch.Tensor or None")
    if labels.shape != logits.shape:
        raise ValueError(f"labels: expected shape (B, S) = {tuple(logits.shape)}, got shape {tuple(labels.shape)}")
    counted = sentence & (labels != IGNORED)
    if values_readable(labels) and bool((counted & (labels != 0) & (labels != 1)).any()):
        raise ValueError(f"labels: expected 0, 1 or {IGNORED}, got other values")
    # masked_fill and not a product: the logits of padding may be NaN.
    targets = labels.to(logits.dtype).masked_fill(~counted, 0.0)
    each = F.binary_cross_entropy_with_logits(logits.masked_fill(~counted, 0.0), targets, reduction="none")
    return each.masked_fill(~counted, 0.0).sum() / counted.sum().clamp_min(1)

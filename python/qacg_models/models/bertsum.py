"""BertSum (Liu, 2019): extractive summarisation by scores of sentences, over any encoder.

Every sentence of a document begins with a [CLS] of its own, whose hidden state stands for the sentence; a
transformer over the sentences scores each in view of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from qacg_kernels.utils.torch_internals import values_readable
from qacg_models.checkpoints.head_names import BERTSUM_ALIASES
from qacg_models.configs.bertsum import BertSumConfig
from qacg_models.models.encoder_head import EncoderHeadModel
from qacg_models.modules.bertsum_layers import PositionalEncoding, TransformerInterEncoder
from qacg_models.modules.multi_headed_attention import IMPLEMENTATIONS

IGNORED = -100  # label of a sentence that the loss leaves out
NO_SENTENCE = -1  # position that pads the list of a document's sentences


@dataclass
class BertSumOutput(ModelOutput):
    """Output of `BertSumForExtractiveSummarization`.

    Attributes:
        loss: (), mean binary cross-entropy of the labelled sentences; with labels only.
        scores: (B, S), how much a sentence belongs into the summary, 0 to 1; 0 for padding.
        logits: (B, S); those of padding mean nothing.
        hidden_states, attentions: the encoder's, if asked for.
        inter_attentions: maps over sentences, (B, heads, S, S) of each layer, if attentions were asked for.
    """

    loss: Tensor | None = None
    scores: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    inter_attentions: tuple[Tensor, ...] | None = None


class BertSumForExtractiveSummarization(EncoderHeadModel):
    """Extractive summarisation by BertSum, over any encoder.

    The transformer over sentences has the implementations "sdpa" (the default) and "eager". For another one in
    the encoder alone, name both: attn_implementation={"": "sdpa", "encoder": "flash_attention_2"}.

    Args:
        config: sizes; checked again here, since fields may have been set since it was made.
        encoder: see `from_encoder`; None builds one from `config.encoder`.
    """

    config: BertSumConfig
    config_class = BertSumConfig
    # Names of the published checkpoints: `bert` for the encoder, `encoder` for the transformer over sentences.
    base_model_prefix = "bert"
    card_task = "summarization"
    published_aliases = BERTSUM_ALIASES

    def __init__(self, config: BertSumConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config)
        self._set_encoder(encoder)
        size = config.encoder.hidden_size
        self.encoder = TransformerInterEncoder(
            size,
            config.ff_size,
            config.heads,
            config.dropout,
            config.inter_layers,
            blind_queries=config.blind_queries,
        )
        self.post_init()

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """Transformers' check of the name, narrowed to what the transformer over sentences has."""
        if requested_attention is None:
            return "sdpa"
        if requested_attention not in IMPLEMENTATIONS:
            known = ", ".join(map(repr, IMPLEMENTATIONS))
            raise ValueError(
                f"attn_implementation: got {requested_attention!r}, wanted one of {known}; "
                "{'': 'sdpa', 'encoder': NAME} chooses for the encoder alone"
            )
        return requested_attention

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PositionalEncoding):
            module.reset_table()

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
        return_dict: bool | None = None,
    ) -> BertSumOutput | tuple[Tensor, ...]:
        """Scores the sentences of a padded batch of documents.

        Args:
            input_ids: (B, L), [CLS] sentence [SEP] [CLS] sentence [SEP] ...
            attention_mask: (B, L), 1 for tokens and 0 for padding; None: no padding.
            token_type_ids: (B, L), published as 0 and 1 for sentences in turn; None: all 0.
            sentence_positions: (B, S), where the token that stands for each sentence is; -1 for padding.
            position_ids: (B, L) or (1, L); None: the encoder's own.
            labels: (B, S), 1 for a sentence of the summary, 0 for another, -100 for one that the loss leaves out.
            output_attentions, output_hidden_states, return_dict: None: as configured.

        Raises:
            TypeError, ValueError: naming the argument, what came and what was wanted. Values are looked at on
                the CPU and outside torch.compile only.
        """
        sentence_positions = _checked_positions(sentence_positions, input_ids)
        if token_type_ids is not None and not self.takes_token_types:
            name = type(self.base_model).__name__
            raise ValueError(f"token_type_ids: {name} has one token type or none, wanted None")
        encoded, _ = self.encode(
            input_ids, attention_mask, token_type_ids, position_ids, output_attentions, output_hidden_states
        )
        hidden = encoded.last_hidden_state
        sentence = sentence_positions >= 0
        places = sentence_positions.long().clamp_min(0).unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        want_maps = bool(self.config.output_attentions if output_attentions is None else output_attentions)
        scored = self.encoder(
            hidden.gather(1, places),
            sentence,
            attn_implementation=self.config._attn_implementation,
            output_attentions=want_maps,
            return_dict=True,
        )
        output = BertSumOutput(
            loss=None if labels is None else sentence_loss(scored.logits, labels, sentence),
            scores=scored.scores,
            logits=scored.logits,
            hidden_states=encoded.hidden_states if encoded.hidden_states else None,
            attentions=encoded.attentions if encoded.attentions else None,
            inter_attentions=scored.attentions,
        )
        return output if self.as_dict(return_dict) else output.to_tuple()


def sentence_loss(logits: Tensor, labels: Tensor, sentence: Tensor) -> Tensor:
    """Mean binary cross-entropy over the sentences that have a label; 0, not NaN, if there is none.

    Args:
        logits: (B, S).
        labels: (B, S) of 0, 1 and -100.
        sentence: (B, S) booleans, False for padding.

    Raises:
        TypeError, ValueError: labels of another type, shape or value.
    """
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels: got {type(labels).__name__}, wanted a torch.Tensor or None")
    if labels.shape != logits.shape:
        raise ValueError(f"labels: got shape {tuple(labels.shape)}, wanted (B, S) = {tuple(logits.shape)}")
    counted = sentence & (labels != IGNORED)
    if values_readable(labels) and bool((counted & (labels != 0) & (labels != 1)).any()):
        raise ValueError(f"labels: got values other than 0, 1 and {IGNORED}")
    # Selection, not a product: the logits of padding may be anything.
    wanted = labels.to(logits.dtype).masked_fill(~counted, 0.0)
    each = F.binary_cross_entropy_with_logits(logits.masked_fill(~counted, 0.0), wanted, reduction="none")
    return each.masked_fill(~counted, 0.0).sum() / counted.sum().clamp_min(1)


def _checked_positions(positions: object, input_ids: object) -> Tensor:
    if not isinstance(positions, Tensor):
        raise TypeError(f"sentence_positions: got {type(positions).__name__}, wanted a torch.Tensor (B, S)")
    if positions.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"sentence_positions: got dtype {positions.dtype}, wanted torch.int64 or torch.int32")
    if not isinstance(input_ids, Tensor) or input_ids.dim() != 2:
        return positions  # the check of input_ids says what is wrong with it
    batch, length = input_ids.shape
    if positions.dim() != 2 or positions.shape[0] != batch:
        raise ValueError(f"sentence_positions: got shape {tuple(positions.shape)}, wanted ({batch}, S)")
    if values_readable(positions) and positions.numel():
        low, high = (int(x) for x in positions.aminmax())
        if low < NO_SENTENCE or high >= length:
            raise ValueError(
                f"sentence_positions: got values from {low} to {high}, wanted 0 to {length - 1}, or {NO_SENTENCE} "
                "for padding"
            )
    return positions

"""Query Attention for extractive question answering, over any encoder.

The question is made one vector, q = mean over its tokens of W_q h. Every token of the sequence is weighed by how
well it answers to q, a = softmax(W_k h . q), and the answer's ends are read from a * W_v h:
- "linear": Linear(dropout(gelu(a * W_v h)));
- "convolutional": Linear(dropout([relu(conv_1), relu(conv_3), relu(conv_5)] of a * W_v h)), widths 1, 3 and 5.
A second head tells the type of the question from q.

Padding takes no part, and the mean is over the question alone; the fields `question_mean` and `attend_padding` of the
configuration choose what is published instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from qacg_kernels.utils.torch_internals import values_readable
from qacg_models.configs.query_attention import QueryAttentionConfig
from qacg_models.models.encoder_head import EncoderHeadModel
from qacg_models.modules.input_checks import check_ids
from qacg_models.modules.losses import IGNORED, has_answers, mean_cross_entropy, span_loss


@dataclass
class QueryAttentionOutput(ModelOutput):
    """Output of `QueryAttentionForQuestionAnswering`.

    Attributes:
        loss: (), with labels only: the span's loss plus the weighted loss of the question type, of those labels
            that were given.
        start_logits, end_logits: (B, L), of the first and last token of the answer. Those of padding count in the
            loss, as in BERT.
        query_logits: (B, num_question_types).
        query_attention: a, (B, L), 0 at padding unless `attend_padding` is chosen.
        hidden_states, attentions: the encoder's, if asked for.
    """

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    query_logits: Tensor | None = None
    query_attention: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class QueryAttentionForQuestionAnswering(EncoderHeadModel):
    """Extractive question answering by Query Attention, over any encoder.

    Args:
        config: sizes and variants; checked again here, since fields may have been set since it was made.
        encoder: see `from_encoder`; None builds one from `config.encoder`.
    """

    config: QueryAttentionConfig
    config_class = QueryAttentionConfig
    base_model_prefix = "backbone"
    card_task = "question-answering"
    published_aliases = (("query_calssify_layer.", "query_classify_layer."),)  # sic

    def __init__(self, config: QueryAttentionConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config)
        self._set_encoder(encoder)
        size = config.encoder.hidden_size
        self.query_layer = nn.Linear(size, size)
        self.key_layer = nn.Linear(size, size)
        self.value_layer = nn.Linear(size, size)
        self.query_classify_layer = nn.Linear(size, config.num_question_types)
        width = size
        if config.head == "convolutional":
            width = 3 * config.conv_channels
            self.conv1d_layer1 = nn.Conv1d(size, config.conv_channels, 1)
            self.conv1d_layer3 = nn.Conv1d(size, config.conv_channels, 3, padding=1)
            self.conv1d_layer5 = nn.Conv1d(size, config.conv_channels, 5, padding=2)
        self.dropout = nn.Dropout(config.head_dropout)
        self.classify_layer = nn.Linear(width, 2)
        self.post_init()

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        # The head has no choice of its own; the encoder judges the name when it gets it.
        return requested_attention or "sdpa"

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        head_mask: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        question_type: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> QueryAttentionOutput | tuple[Tensor, ...]:
        """Scores the ends of the answer in a padded batch of questions with texts.

        Args:
            input_ids: (B, L), the question, a separator, the text.
            attention_mask: (B, L), 1 for tokens and 0 for padding; None: no padding.
            token_type_ids: (B, L), 0 for the question; None: made from the separator, see `token_types_of`.
                An encoder with one type or none does not get them.
            position_ids: (B, L) or (1, L); None: the encoder's own.
            inputs_embeds: (B, L, width of the encoder's word embeddings), in place of input_ids. The token types
                have to be given then.
            head_mask: (H) or (layers, H), 1 for an attention head of the encoder and 0 for one that is put out. It
                needs an encoder that takes one, as `BertModel` of this package does and none of transformers 5.
            start_positions, end_positions: (B) first and last token of the answer, both or neither. One outside
                the sequence is left out of the loss, see `outside_positions` of the configuration.
            question_type: (B) below num_question_types, or -100 for rows that the loss leaves out.
            output_attentions, output_hidden_states, return_dict: None: as configured.

        Raises:
            TypeError, ValueError: naming the argument, what came and what was wanted. Values are looked at on
                the CPU and outside torch.compile only.
        """
        if token_type_ids is None and inputs_embeds is not None:
            raise ValueError(
                "token_type_ids: got None beside inputs_embeds, wanted 0 for the question and 1 for the text"
            )
        if self.config.attend_padding and attention_mask is not None:
            self._check_padding_is_computed()
        encoded, visible = self.encode(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            output_attentions,
            output_hidden_states,
            inputs_embeds=inputs_embeds,
            head_mask=head_mask,
        )
        hidden = encoded.last_hidden_state
        if token_type_ids is None:
            assert input_ids is not None, "there are ids where there are no embeddings"
            token_type_ids = self.token_types_of(input_ids)
        if self.config.attend_padding:
            visible = None
        question = token_type_ids == 0
        if visible is not None:
            question = question & visible
        if values_readable(question) and not bool(question.any(-1).all()):
            row = int((~question.any(-1)).nonzero()[0, 0])
            raise ValueError(f"token_type_ids: row {row} has no token of type 0, wanted a question in every row")

        query = self.query_layer(_mean_over(hidden, question, self.config.question_mean))
        weights = self._attend(hidden, query, visible)
        features = self.value_layer(hidden) * weights.unsqueeze(-1)
        logits = self.classify_layer(self.dropout(self._features_of_ends(features)))
        start_logits, end_logits = logits.unbind(-1)
        query_logits = self.query_classify_layer(query)
        output = QueryAttentionOutput(
            loss=self._loss(start_logits, end_logits, query_logits, start_positions, end_positions, question_type),
            start_logits=start_logits,
            end_logits=end_logits,
            query_logits=query_logits,
            query_attention=weights,
            hidden_states=encoded.hidden_states if encoded.hidden_states else None,
            attentions=encoded.attentions if encoded.attentions else None,
        )
        return output if self.as_dict(return_dict) else output.to_tuple()

    def token_types_of(self, input_ids: Tensor) -> Tensor:
        """(B, L) token types of (B, L) ids: 0 before the first separator, 1 from it on.

        Raises:
            ValueError: the configuration has no sep_token_id, or a row no separator.
        """
        if self.config.sep_token_id is None:
            raise ValueError("token_type_ids: got None, and config.sep_token_id is None; give one of them")
        types = (input_ids == self.config.sep_token_id).cummax(-1).values.long()
        if values_readable(types) and not bool(types.any(-1).all()):
            row = int((~types.any(-1)).nonzero()[0, 0])
            raise ValueError(f"input_ids: row {row} has no separator (sep_token_id {self.config.sep_token_id})")
        return types

    def _check_padding_is_computed(self) -> None:
        implementation = self.config.encoder._attn_implementation or ""
        if "flash" in implementation:
            raise ValueError(
                f"attend_padding: got True with the encoder's implementation {implementation!r}, which leaves padding "
                "out; model.set_attn_implementation('sdpa') computes it, or attention_mask=None without padding"
            )

    def _attend(self, hidden: Tensor, query: Tensor, visible: Tensor | None) -> Tensor:
        """softmax over the sequence of (W_k h + b_k) . q, (B, L)."""
        # h . (W_k' q) + b_k . q: one product with the keys' weights per sequence and not per token.
        scores = (hidden @ (query @ self.key_layer.weight).unsqueeze(-1)).squeeze(-1)
        scores = scores + (query @ self.key_layer.bias).unsqueeze(-1)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if visible is not None:
            # Then zeros, for a row of padding alone.
            scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        if visible is not None:
            weights = weights.masked_fill(~visible, 0.0)
        return weights.to(hidden.dtype)

    def _features_of_ends(self, features: Tensor) -> Tensor:
        """What the last layer reads: (B, L, hidden) to (B, L, hidden or 3 conv_channels)."""
        if self.config.head == "linear":
            return F.gelu(features)
        channels_first = features.transpose(1, 2)
        convolutions = (self.conv1d_layer1, self.conv1d_layer3, self.conv1d_layer5)
        return torch.cat([F.relu(conv(channels_first)) for conv in convolutions], 1).transpose(1, 2)

    def _loss(self, start_logits, end_logits, query_logits, start_positions, end_positions, question_type):
        losses = []
        if has_answers(start_positions, end_positions):
            outside = self.config.outside_positions
            losses.append(span_loss(start_logits, end_logits, start_positions, end_positions, outside))
        if question_type is not None:
            _check_question_type(question_type, query_logits)
            loss = mean_cross_entropy(query_logits, question_type.long())
            losses.append(self.config.question_type_loss_weight * loss)
        return sum(losses) if losses else None


def _check_question_type(question_type: object, query_logits: Tensor) -> None:
    batch, types = query_logits.shape
    if isinstance(question_type, Tensor):
        question_type = question_type.masked_fill(question_type == IGNORED, 0)
    check_ids("question_type", question_type, (batch,), types, "num_question_types")


def _mean_over(hidden: Tensor, chosen: Tensor, mean: str) -> Tensor:
    """Sum of the chosen tokens over their number or, for "length", over that of all: (B, L, hidden) and booleans (B, L)
    to (B, hidden); 0 where none is chosen."""
    chosen = chosen.to(torch.promote_types(hidden.dtype, torch.float32))
    shares = chosen / (chosen.shape[-1] if mean == "length" else chosen.sum(-1, keepdim=True).clamp_min(1))
    return (shares.to(hidden.dtype).unsqueeze(1) @ hidden).squeeze(1)

"""Query Attention for extractive question answering, over any encoder.

h is the hidden state of a token after the encoder. The question becomes one vector q, the mean of W_q h over the tokens
of the question. Every token gets the weight a = softmax(W_k h . q), a softmax over the tokens of the sequence, and the
features f = a * W_v h.
The first and last token of the answer are predicted from f by one of two heads (`config.head`):
- "linear": Linear(dropout(gelu(f)));
- "convolutional": Linear(dropout([relu(conv_1(f)), relu(conv_3(f)), relu(conv_5(f))])), with kernel sizes 1, 3 and 5.
Another linear layer predicts the type of the question from q.

In the published code padding is attended to, and the mean divides by the padded length: `config.attend_padding` and
`config.question_mean`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput, can_return_tuple

from qacg_kernels.call.validation import check_choice, check_flag
from qacg_kernels.utils.torch_internals import values_readable
from qacg_models.layers.batch import check_ids
from qacg_models.models.base import IGNORED, mean_cross_entropy
from qacg_models.models.bert import OUTSIDE_POSITIONS, span_loss
from qacg_models.models.encoder_head import EncoderHeadConfig, EncoderHeadModel
from qacg_models.utils.fields import check_integer, check_number, check_probability

QUESTION_MEANS = ("tokens", "length")
HEAD_DROPOUT = {"linear": 0.7, "convolutional": 0.3}  # as published


class QueryAttentionConfig(EncoderHeadConfig):
    """Configuration of Query Attention, a model for extractive question answering.

    Args:
        encoder: configuration of the encoder, or its fields with `model_type`; None: transformers' BERT.
        head: head that predicts the answer span, "linear" or "convolutional".
        conv_channels: channels of each of the three convolutions in the convolutional head.
        head_dropout: dropout probability before the last layer; None: 0.7 for the linear head, 0.3 for the
            convolutional one.
        question_mean: divisor of the sum over the tokens of the question: "tokens", their number; or "length", the
            length of the padded sequence, as published. With "length" the vector of the question is smaller for longer
            texts.
        attend_padding: whether padding has attention weights, as published. If so, padding of token type 0, which
            BERT's tokenizers produce, counts as part of the question, and scores depend on the padding of the batch.
        num_question_types: classes of the question-type head.
        question_type_loss_weight: weight of the question-type loss, relative to the loss of the answer span.
        outside_positions: what the loss does with answer positions outside the sequence, "ignore" or "clamp"; see
            `span_loss`.
        sep_token_id: id of the separator that ends the question. Required for inputs without token types: the tokens
            before the first separator are then the question.
        allow_no_answer: whether a question may have no answer; for such a question the first token is start and end.
        no_answer_threshold: with allow_no_answer, "no answer" is the first answer if its score exceeds the score of the
            best span by more than this number, or if no span is found.
        **kwargs: fields of every transformers configuration.

    Example:
        >>> QueryAttentionConfig(head="convolutional").head_dropout
        0.3
    """

    model_type = "query_attention"

    def __init__(
        self,
        *,
        encoder: PreTrainedConfig | dict | None = None,
        head: str = "linear",
        conv_channels: int = 1024,
        head_dropout: float | None = None,
        question_mean: str = "tokens",
        attend_padding: bool = False,
        num_question_types: int = 6,
        question_type_loss_weight: float = 1.0,
        outside_positions: str = "ignore",
        sep_token_id: int | None = None,
        allow_no_answer: bool = False,
        no_answer_threshold: float = 0.0,
        **kwargs: Any,
    ):
        check_choice("head", head, tuple(HEAD_DROPOUT))  # before it is used as a key
        self.head = head
        self.conv_channels = conv_channels
        self.head_dropout = HEAD_DROPOUT[head] if head_dropout is None else head_dropout
        self.question_mean = question_mean
        self.attend_padding = attend_padding
        self.num_question_types = num_question_types
        self.question_type_loss_weight = question_type_loss_weight
        self.outside_positions = outside_positions
        self.sep_token_id = sep_token_id
        self.allow_no_answer = allow_no_answer
        self.no_answer_threshold = no_answer_threshold
        super().__init__(encoder=encoder, **kwargs)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first invalid field."""
        super().check()
        check_choice("head", self.head, tuple(HEAD_DROPOUT))
        check_integer("conv_channels", self.conv_channels, 1)
        check_integer("num_question_types", self.num_question_types, 1)
        check_choice("question_mean", self.question_mean, QUESTION_MEANS)
        check_flag("attend_padding", self.attend_padding)
        check_probability("head_dropout", self.head_dropout)
        check_number("question_type_loss_weight", self.question_type_loss_weight, at_least=0.0)
        check_choice("outside_positions", self.outside_positions, OUTSIDE_POSITIONS)
        check_number("no_answer_threshold", self.no_answer_threshold)
        check_flag("allow_no_answer", self.allow_no_answer)
        if self.sep_token_id is not None:
            check_integer("sep_token_id", self.sep_token_id, 0, below=self.encoder.vocab_size)


@dataclass
class QueryAttentionOutput(ModelOutput):
    """Output of `QueryAttentionForQuestionAnswering`.

    Attributes:
        loss: (), the loss of the span plus the weighted loss of the question type. If only one of the two has labels,
            it is that loss alone; None without labels.
        start_logits: (B, L), logit of each token as the first of the answer. The softmax of the loss includes padding,
            as in BERT.
        end_logits: (B, L), logit of each token as the last of the answer.
        query_logits: (B, num_question_types), logits of the question type.
        query_attention: the weights a, (B, L), 0 at padding unless `config.attend_padding` is set.
        hidden_states: hidden states of the encoder; None unless requested.
        attentions: attention matrices of the encoder; None unless requested.

    Example:
        >>> QueryAttentionOutput(start_logits=torch.zeros(2, 5)).keys()
        odict_keys(['start_logits'])
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
        config: configuration of the head; its field `encoder` is the configuration of the encoder.
        encoder: a transformers encoder, which becomes part of the model and whose configuration replaces
            `config.encoder`. Its pooler is removed if its constructor has the argument `add_pooling_layer`.
            None: an encoder is built from `config.encoder`, with initial weights.

    Example:
        >>> from qacg_models import PlainBertConfig
        >>> encoder = PlainBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> model = QueryAttentionForQuestionAnswering(QueryAttentionConfig(encoder=encoder, sep_token_id=2)).eval()
        >>> model(torch.tensor([[1, 5, 6, 2, 7, 8, 2]])).start_logits.shape
        torch.Size([1, 7])
    """

    config: QueryAttentionConfig
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

    @can_return_tuple
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
    ) -> QueryAttentionOutput:
        """Scores each token of a padded batch as the first and as the last token of an answer.

        Args:
            input_ids: (B, L) int64 or int32: in each row the question, a separator, the text; None with inputs_embeds.
            attention_mask: (B, L), 1 for tokens and 0 for padding; None: no padding.
            token_type_ids: (B, L) int64 or int32, 0 for the question and 1 for the text. An encoder with at most one
                token type does not receive them. None: the question is the tokens before the first
                `config.sep_token_id`, and the encoder uses its default token types.
            position_ids: (B, L) or (1, L) int64 or int32; None: the default of the encoder. An encoder without this
                argument requires None.
            inputs_embeds: (B, L, width of the word embeddings), in place of input_ids; requires token_type_ids, and an
                encoder with this argument.
            head_mask: (H) or (layers, H), 1 keeps a head of the encoder, 0 removes it; None: all heads are kept. It
                requires an encoder with this argument, such as `BertModel` of this package.
            start_positions: (B) or (B, 1) int64 or int32, index of the first token of each answer; for positions
                outside the sequence see `config.outside_positions`. None, like end_positions: no loss of the span.
            end_positions: (B) or (B, 1) int64 or int32, index of the last token of each answer.
            question_type: (B) int64 or int32 from 0 to num_question_types - 1, or -100 for questions that the loss
                leaves out. None: no loss of the question type.
            output_attentions: return attention matrices of the encoder; None: `config.output_attentions`.
            output_hidden_states: return hidden states of the encoder; None: `config.output_hidden_states`.

        Returns:
            A `QueryAttentionOutput`; with return_dict=False its fields that are not None.

        Raises:
            TypeError: an argument has the wrong type or dtype; the message names it.
            ValueError: an argument has the wrong shape or value, or the attention implementation of the encoder does
                not support output_attentions or `config.attend_padding`. Values are not checked on a GPU or under
                torch.compile.
        """
        if token_type_ids is None and inputs_embeds is not None:
            raise ValueError(
                "token_type_ids: expected 0 for the question and 1 for the text, got None with inputs_embeds. "
                "Pass token_type_ids: separators are found only in input_ids."
            )
        implementation = self.config.encoder._attn_implementation or ""
        if self.config.attend_padding and attention_mask is not None and "flash" in implementation:
            raise ValueError(
                f"attend_padding: expected False with the encoder's attn_implementation {implementation!r}, which "
                "leaves out padding, got True. Call model.set_attn_implementation('sdpa')."
            )
        encoded, visible = self.encode(
            *(input_ids, attention_mask, token_type_ids, position_ids, output_attentions, output_hidden_states),
            inputs_embeds=inputs_embeds,
            head_mask=head_mask,
        )
        hidden = encoded.last_hidden_state
        if token_type_ids is None:
            assert input_ids is not None, "inputs_embeds require token_type_ids"
            token_type_ids = self.token_types_of(input_ids)
        if self.config.attend_padding:
            visible = None
        question = _question_tokens(token_type_ids, visible)
        query = self.query_layer(_mean_over(hidden, question, self.config.question_mean))
        weights = self._attend(hidden, query, visible)
        features = self.value_layer(hidden) * weights.unsqueeze(-1)
        logits = self.classify_layer(self.dropout(self._head_features(features)))
        start_logits, end_logits = logits.unbind(-1)
        query_logits = self.query_classify_layer(query)
        return QueryAttentionOutput(
            loss=self._loss(start_logits, end_logits, query_logits, start_positions, end_positions, question_type),
            start_logits=start_logits,
            end_logits=end_logits,
            query_logits=query_logits,
            query_attention=weights,
            hidden_states=encoded.hidden_states or None,
            attentions=encoded.attentions or None,
        )

    def token_types_of(self, input_ids: Tensor) -> Tensor:
        """Returns the token types (B, L) of `input_ids`: 0 before the first separator, 1 from it on.

        Raises:
            ValueError: the configuration has no sep_token_id, or a row has no separator.
        """
        if self.config.sep_token_id is None:
            raise ValueError(
                "token_type_ids: expected a tensor if config.sep_token_id is None, got None. Pass token_type_ids, "
                "or set config.sep_token_id."
            )
        types = (input_ids == self.config.sep_token_id).cummax(-1).values.long()
        if (row := _first_empty_row(types)) is not None:
            raise ValueError(
                f"input_ids: expected a separator ({self.config.sep_token_id}) in every row, got none in row {row}"
            )
        return types

    def _attend(self, hidden: Tensor, query: Tensor, visible: Tensor | None) -> Tensor:
        """Returns the softmax over the sequence of (W_k h + b_k) . q, (B, L)."""
        scores = (self.key_layer(hidden) @ query.unsqueeze(-1)).squeeze(-1)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if visible is not None:
            # In a row that is all padding, all scores are equal and no weight is 0, so weights are masked below too.
            scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        if visible is not None:
            weights = weights.masked_fill(~visible, 0.0)
        return weights.to(hidden.dtype)

    def _head_features(self, features: Tensor) -> Tensor:
        """Returns the gelu of features (B, L, hidden), or their convolutions (B, L, 3 * conv_channels)."""
        if self.config.head == "linear":
            return F.gelu(features)
        channels_first = features.transpose(1, 2)
        convolutions = (self.conv1d_layer1, self.conv1d_layer3, self.conv1d_layer5)
        return torch.cat([F.relu(conv(channels_first)) for conv in convolutions], 1).transpose(1, 2)

    def _loss(self, start_logits, end_logits, query_logits, start_positions, end_positions, question_type):
        outside = self.config.outside_positions
        span = span_loss(start_logits, end_logits, start_positions, end_positions, outside)
        losses = [] if span is None else [span]
        if question_type is not None:
            batch, types = query_logits.shape
            left_out = (IGNORED, "questions to leave out")
            check_ids("question_type", question_type, (batch,), types, "num_question_types", other=left_out)
            loss = mean_cross_entropy(query_logits, question_type.long())
            losses.append(self.config.question_type_loss_weight * loss)
        return sum(losses) if losses else None


def _question_tokens(token_type_ids: Tensor, visible: Tensor | None) -> Tensor:
    """Returns (B, L) booleans, True for tokens of the question; raises ValueError for a row without any."""
    question = token_type_ids == 0
    if visible is not None:
        question = question & visible
    if (row := _first_empty_row(question)) is not None:
        padding = "" if visible is None else " Padding does not count."
        raise ValueError(
            f"token_type_ids: expected a token of type 0 in every row, got none in row {row}. Type 0 marks the "
            f"question. If token_type_ids is None, the tokens before the first separator have type 0.{padding}"
        )
    return question


def _first_empty_row(found: Tensor) -> int | None:
    """Returns the index of the first row without a nonzero value; None on a GPU or under torch.compile."""
    if not values_readable(found) or bool(found.any(-1).all()):
        return None
    return int((~found.any(-1)).nonzero()[0, 0])


def _mean_over(hidden: Tensor, chosen: Tensor, mean: str) -> Tensor:
    """Returns the mean of the chosen tokens (B, L) of hidden (B, L, hidden), 0 for a sequence without any.

    `mean` is "tokens", which divides the sum by the number of chosen tokens, or "length", which divides it by L.
    """
    chosen = chosen.to(torch.promote_types(hidden.dtype, torch.float32))
    shares = chosen / (chosen.shape[-1] if mean == "length" else chosen.sum(-1, keepdim=True).clamp_min(1))
    return (shares.to(hidden.dtype).unsqueeze(1) @ hidden).squeeze(1)

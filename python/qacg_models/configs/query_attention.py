"""Configuration of Query Attention."""

from transformers import PreTrainedConfig
from typing_extensions import Unpack

from qacg_kernels.call.validation import check_choice, check_flag
from qacg_models.configs.bert import OUTSIDE_POSITIONS
from qacg_models.configs.encoder import CommonFields
from qacg_models.configs.encoder_head import EncoderHeadConfig
from qacg_models.configs.field_checks import check_integer, check_number, check_probability, check_size

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

    Raises:
        TypeError, ValueError: a field is unknown or invalid; the message names the field and the expected value.

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
        **kwargs: Unpack[CommonFields],
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
        check_size("conv_channels", self.conv_channels)
        check_size("num_question_types", self.num_question_types)
        check_choice("question_mean", self.question_mean, QUESTION_MEANS)
        check_flag("attend_padding", self.attend_padding)
        check_probability("head_dropout", self.head_dropout)
        check_number("question_type_loss_weight", self.question_type_loss_weight, at_least=0.0)
        check_choice("outside_positions", self.outside_positions, OUTSIDE_POSITIONS)
        check_number("no_answer_threshold", self.no_answer_threshold)
        check_flag("allow_no_answer", self.allow_no_answer)
        if self.sep_token_id is not None:
            check_integer("sep_token_id", self.sep_token_id, 0, below=self.encoder.vocab_size)

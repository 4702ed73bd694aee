"""Configuration of BERT."""

from typing_extensions import Unpack

from qacg_kernels.call.validation import check_choice, check_flag
from qacg_models.configs.encoder import EncoderConfig, EncoderFields

OUTSIDE_POSITIONS = ("ignore", "clamp")


class PlainBertConfig(EncoderConfig):
    """Configuration of BERT with plain softmax attention.

    The class is not called BertConfig, because transformers registers its own class under that name. This class reads
    configuration files of transformers' BERT too.

    Args:
        outside_positions: what the loss of question answering does with answer positions outside the sequence, "ignore"
            or "clamp"; see `span_loss`.
        answer_pooler: whether `BertForQuestionAnswering` has the pooler of published checkpoints, which is loaded and
            saved, but neither run nor trained.
        **kwargs: fields of `EncoderConfig`.

    Raises:
        TypeError, ValueError: a field is unknown or invalid; the message names the field and the expected value.

    Example:
        >>> PlainBertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, num_labels=3).num_labels
        3
    """

    model_type = "plain_bert"

    def __init__(
        self, *, outside_positions: str = "ignore", answer_pooler: bool = False, **kwargs: Unpack[EncoderFields]
    ):
        self.outside_positions = outside_positions
        self.answer_pooler = answer_pooler
        super().__init__(**kwargs)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first invalid field."""
        super().check()
        check_choice("outside_positions", self.outside_positions, OUTSIDE_POSITIONS)
        check_flag("answer_pooler", self.answer_pooler)

"""Configuration of BERT."""

from typing_extensions import Unpack

from qacg_models.configs.encoder import EncoderConfig, EncoderFields
from qacg_models.configs.field_checks import check_flag, check_one_of

OUTSIDE_POSITIONS = ("ignore", "clamp")


class PlainBertConfig(EncoderConfig):
    """BERT with plain softmax attention.

    Called plain because transformers has a BertConfig, and its registry goes by class name. It reads the
    configuration files of transformers' BERT.

    Args:
        outside_positions: what the loss of question answering does with ends of answers that lie outside the
            sequence, see `span_loss`.
        answer_pooler: whether `BertForQuestionAnswering` has the pooler of published checkpoints, which is loaded and
            saved, and neither run nor trained.
        Others: as in `EncoderConfig`.

    Raises:
        TypeError, ValueError: naming the field, its value and its limit.
    """

    model_type = "plain_bert"

    def __init__(
        self, *, outside_positions: str = "ignore", answer_pooler: bool = False, **kwargs: Unpack[EncoderFields]
    ):
        self.outside_positions = outside_positions
        self.answer_pooler = answer_pooler
        super().__init__(**kwargs)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first field that is out of its limits."""
        super().check()
        check_one_of("outside_positions", self.outside_positions, OUTSIDE_POSITIONS)
        check_flag("answer_pooler", self.answer_pooler)

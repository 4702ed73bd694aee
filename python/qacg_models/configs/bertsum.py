"""Configuration of BertSum."""

from transformers import PreTrainedConfig
from typing_extensions import Unpack

from qacg_kernels.call.validation import check_choice
from qacg_models.configs.encoder import CommonFields
from qacg_models.configs.encoder_head import EncoderHeadConfig
from qacg_models.configs.field_checks import check_probability, check_size

BLIND_QUERIES = ("zeros", "average")


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

    Raises:
        TypeError, ValueError: a field is unknown or invalid; the message names the field and the expected value.

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
        **kwargs: Unpack[CommonFields],
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
        check_size("inter_layers", self.inter_layers, at_least=0)
        check_size("heads", self.heads)
        check_size("ff_size", self.ff_size)
        check_probability("dropout", self.dropout)
        check_choice("blind_queries", self.blind_queries, BLIND_QUERIES)
        if self.encoder.hidden_size % self.heads:
            raise ValueError(
                f"heads: expected a divisor of the encoder's hidden_size = {self.encoder.hidden_size}, got {self.heads}"
            )

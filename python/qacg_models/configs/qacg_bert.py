"""Configuration of QACG-BERT, with the published field names and variants."""

from typing_extensions import Unpack

from qacg_kernels.attention_layers import NAMINGS
from qacg_kernels.call.validation import check_choice, checked_quasi_bias
from qacg_models.configs.context import GatedContextConfig, GatedContextFields
from qacg_models.configs.field_checks import check_number


class QACGBertConfig(GatedContextConfig):
    """Configuration of QACG-BERT: sizes, and variants of the pooler, the context projection and the gates.

    The published variants are `pooler="cls", context_projection="hidden", lambda_bias=True` (the released
    code, and the default) and `pooler="attention", context_projection="head", lambda_bias=False`.

    Args:
        context_projection: "hidden" projects the whole context by a matrix (hidden x hidden); "head" projects the slice
            of each head by one shared matrix (head size x head size).
        lambda_bias: whether the linear layers that compute the gates have biases.
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

    Raises:
        TypeError, ValueError: a field is unknown or invalid; the message names the field and the expected value.

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
        **kwargs: Unpack[GatedContextFields],
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

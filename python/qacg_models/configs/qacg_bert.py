"""Configuration of QACG-BERT: the published field names, and every published variant as a named choice."""

from typing_extensions import Unpack

from qacg_kernels.nn import NAMINGS
from qacg_models.configs.context import GatedContextConfig, GatedContextFields
from qacg_models.configs.field_checks import check_number, check_one_of


class QACGBertConfig(GatedContextConfig):
    """Sizes and variants of a QACG-BERT.

    The published variants are `pooler="cls", context_projection="hidden", lambda_bias=True` (the released
    code, and the default here) and `pooler="attention", context_projection="head", lambda_bias=False`.

    Args:
        quasi_scale, beta, gamma: scalars of quasi-attention and of its gate, 1 in the published code.
        attention_naming: "released" or "compact", which published names the attention's parameters have
            (`qacg_kernels.nn.NAMINGS`). Checkpoints load under either.
        Others: as in `GatedContextConfig` and the classes above it. attention_probs_dropout_prob is the dropout of the
            map A and of context queries and keys.

    Raises:
        TypeError, ValueError: naming the field, its value and its limit.
    """

    model_type = "qacg_bert"

    def __init__(
        self,
        *,
        context_projection: str = "hidden",
        lambda_bias: bool = True,
        quasi_scale: float = 1.0,
        beta: float = 1.0,
        gamma: float = 1.0,
        attention_naming: str = "released",
        **kwargs: Unpack[GatedContextFields],
    ):
        self.quasi_scale = quasi_scale
        self.beta = beta
        self.gamma = gamma
        self.attention_naming = attention_naming
        super().__init__(context_projection=context_projection, lambda_bias=lambda_bias, **kwargs)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first field that is out of its limits."""
        super().check()
        for field in ("quasi_scale", "beta", "gamma"):
            check_number(field, getattr(self, field))
        check_one_of("attention_naming", self.attention_naming, tuple(NAMINGS))

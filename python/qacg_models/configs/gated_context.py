"""What the configurations of QACG-BERT and CG-BERT share: variants of the context's projections and of the gates."""

from typing_extensions import Unpack

from qacg_models.configs.context import ContextConfig, ContextFields
from qacg_models.configs.field_checks import check_flag, check_one_of

CONTEXT_PROJECTIONS = ("hidden", "head")


class GatedContextFields(ContextFields, total=False):
    """The fields of `GatedContextConfig` that its variants hand on as they are."""

    lambda_per_head: bool


class GatedContextConfig(ContextConfig):
    """An encoder whose self-attention has a context, let in by gates.

    Args:
        context_projection: "hidden" projects the whole context (hidden x hidden), "head" each head's slice
            with one matrix shared by the heads (head size x head size).
        lambda_bias: whether the layers of the gates have biases.
        lambda_per_head: whether every head has gate weights of its own (the paper) or all share them (the
            published code).
        Others: as in `ContextConfig`. The gates' weights start at 0.01 whatever initializer_range is.

    Raises:
        TypeError, ValueError: naming the field, its value and its limit.
    """

    def __init__(
        self,
        *,
        context_projection: str,
        lambda_bias: bool,
        lambda_per_head: bool = False,
        **kwargs: Unpack[ContextFields],
    ):
        self.context_projection = context_projection
        self.lambda_bias = lambda_bias
        self.lambda_per_head = lambda_per_head
        super().__init__(**kwargs)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first field that is out of its limits."""
        super().check()
        check_one_of("context_projection", self.context_projection, CONTEXT_PROJECTIONS)
        for field in ("lambda_bias", "lambda_per_head"):
            check_flag(field, getattr(self, field))

"""Configuration of CG-BERT: the published field names, and every published variant as a named choice."""

from typing import Any

from typing_extensions import Unpack

from qacg_models.configs.context import GatedContextConfig, GatedContextFields
from qacg_models.configs.field_checks import check_one_of

GATE_ACTIVATIONS = ("sigmoid", "tanh")


class CGBertFields(GatedContextFields, total=False):
    """Fields that `CGBertConfig` reads beside its own."""

    A_prob_dropout_prob: float  # what a published text calls attention_probs_dropout_prob


class CGBertConfig(GatedContextConfig):
    """Sizes and variants of a CG-BERT.

    The published code has `context_projection="head", lambda_bias=False` (the default here).

    Args:
        gate_activation: "sigmoid" (the published code) or "tanh" (the paper).
        Others: as in `GatedContextConfig` and the classes above it. `A_prob_dropout_prob`, as one published text calls
            it, is read as attention_probs_dropout_prob.

    Raises:
        TypeError, ValueError: naming the field, its value and its limit.
    """

    model_type = "cg_bert"

    def __init__(
        self,
        *,
        context_projection: str = "head",
        lambda_bias: bool = False,
        gate_activation: str = "sigmoid",
        **kwargs: Unpack[CGBertFields],
    ):
        self.gate_activation = gate_activation
        rest: dict[str, Any] = dict(kwargs)
        if "A_prob_dropout_prob" in rest:
            other = rest.pop("A_prob_dropout_prob")
            if rest.setdefault("attention_probs_dropout_prob", other) != other:
                raise ValueError(
                    f"A_prob_dropout_prob: got {other} beside attention_probs_dropout_prob = "
                    f"{rest['attention_probs_dropout_prob']}; they are two names of one field"
                )
        super().__init__(context_projection=context_projection, lambda_bias=lambda_bias, **rest)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first field that is out of its limits."""
        super().check()
        check_one_of("gate_activation", self.gate_activation, GATE_ACTIVATIONS)

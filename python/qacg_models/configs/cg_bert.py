"""Configuration of CG-BERT, with the published field names and variants."""

from typing import Any

from typing_extensions import Unpack

from qacg_kernels.call.validation import check_choice
from qacg_models.configs.context import GatedContextConfig, GatedContextFields

GATE_ACTIVATIONS = ("sigmoid", "tanh")


class CGBertFields(GatedContextFields, total=False):
    """The fields that type checkers accept as `**kwargs` of `CGBertConfig`."""

    A_prob_dropout_prob: float  # a published name of attention_probs_dropout_prob


class CGBertConfig(GatedContextConfig):
    """Configuration of CG-BERT: sizes, and variants of the context projection and the gates.

    The published code has `context_projection="head", lambda_bias=False`, which are the defaults.

    Args:
        context_projection: "hidden" projects the whole context by a matrix (hidden x hidden); "head" projects the slice
            of each head by one shared matrix (head size x head size).
        lambda_bias: whether the linear layers that compute the gates have biases.
        gate_activation: "sigmoid" (the published code) or "tanh" (the paper).
        **kwargs: other fields of `GatedContextConfig`, `ContextConfig` and `EncoderConfig`. The published name
            `A_prob_dropout_prob` is read as attention_probs_dropout_prob.

    Raises:
        TypeError, ValueError: a field is unknown or invalid; the message names the field and the expected value.

    Example:
        >>> CGBertConfig(contexts=["price", "service"], num_labels=3).context_id("service")
        1
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
                    f"A_prob_dropout_prob: expected {rest['attention_probs_dropout_prob']}, the value of "
                    f"attention_probs_dropout_prob, got {other}. The two names are of the same field. Omit one of them."
                )
        super().__init__(context_projection=context_projection, lambda_bias=lambda_bias, **rest)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first invalid field."""
        super().check()
        check_choice("gate_activation", self.gate_activation, GATE_ACTIVATIONS)

"""Configurations of encoders with a context: names of the contexts, variants of projections and gates."""

from collections import Counter
from collections.abc import Sequence

from typing_extensions import Unpack

from qacg_kernels.call.validation import check_choice, check_flag
from qacg_models.configs.encoder import EncoderConfig, EncoderFields
from qacg_models.configs.field_checks import check_size
from qacg_models.configs.limits import MOST, limit

CONTEXT_PROJECTIONS = ("hidden", "head")


class ContextFields(EncoderFields, total=False):
    """The fields of `ContextConfig`, for the signatures of subclasses."""

    contexts: int | Sequence[str]
    context_standalone: bool


class ContextConfig(EncoderConfig):
    """Configuration of an encoder that reads a context, such as an aspect, by its id.

    Args:
        contexts: names of the contexts, in the order of their ids; or their number, for the names CONTEXT_0, CONTEXT_1,
            and so on.
        context_standalone: True: the model receives the context by its id only, and raises ValueError for a second
            segment (checked on the CPU and outside torch.compile only). False: inputs may also have the context's name
            as second segment.
        **kwargs: fields of `EncoderConfig`.

    Raises:
        TypeError, ValueError: a field is unknown or invalid; the message names the field and the expected value.
    """

    def __init__(
        self,
        *,
        contexts: int | Sequence[str] = 8,
        context_standalone: bool = False,
        **kwargs: Unpack[EncoderFields],
    ):
        if "num_contexts" in kwargs:
            raise TypeError(
                "num_contexts: expected no value, since contexts determines it. Pass contexts=N or contexts=[names]."
            )
        self.contexts = _context_names(contexts)
        self.context_standalone = context_standalone
        super().__init__(**kwargs)

    @property
    def num_contexts(self) -> int:
        """Number of contexts, which is the number of rows of the context embedding."""
        return len(self.contexts)

    @property
    def context2id(self) -> dict[str, int]:
        """The id of every context, by name."""
        return {name: i for i, name in enumerate(self.contexts)}

    def context_id(self, name: str) -> int:
        """Returns the id of a context; raises ValueError for an unknown name."""
        try:
            return self.contexts.index(name)
        except ValueError:
            known = ", ".join(map(repr, self.contexts))
            raise ValueError(f"context: expected one of {known}, got {name!r}") from None

    def check(self) -> None:
        """Raises TypeError or ValueError for the first invalid field."""
        super().check()
        check_flag("context_standalone", self.context_standalone)
        self.contexts = _context_names(self.contexts)


class ContextFromLayerFields(ContextFields, total=False):
    """The fields of `ContextFromLayerConfig`, for the signatures of subclasses."""

    context_from_layer: int


class ContextFromLayerConfig(ContextConfig):
    """Configuration of an encoder whose lower layers are those of BERT, and whose other layers read a context.

    Args:
        context_from_layer: index of the first layer that reads the context, from 0 to num_hidden_layers - 1. With
            context_standalone, the layers before it can run once for all contexts of a text (the argument `text_ids` of
            the model).
        **kwargs: fields of `ContextConfig` and `EncoderConfig`.

    Raises:
        TypeError, ValueError: a field is unknown or invalid; the message names the field and the expected value.
    """

    def __init__(self, *, context_from_layer: int = 0, **kwargs: Unpack[ContextFields]):
        self.context_from_layer = context_from_layer
        super().__init__(**kwargs)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first invalid field."""
        super().check()
        layer = self.context_from_layer
        if isinstance(layer, bool) or not isinstance(layer, int):
            raise TypeError(f"context_from_layer: expected an integer, got {layer!r}")
        if not 0 <= layer < self.num_hidden_layers:
            raise ValueError(
                f"context_from_layer: expected 0 to {self.num_hidden_layers - 1}, below num_hidden_layers, got {layer}."
            )

    @property
    def shares_texts(self) -> bool:
        """Whether layers before `context_from_layer` can run once per text for all contexts."""
        return self.context_standalone and self.context_from_layer > 0


class GatedContextFields(ContextFromLayerFields, total=False):
    """The fields of `GatedContextConfig` that its subclasses accept as `**kwargs`, for their signatures."""

    lambda_per_head: bool


class GatedContextConfig(ContextFromLayerConfig):
    """Configuration of an encoder whose self-attention reads a context through gates.

    Args:
        context_projection: "hidden" projects the whole context by a matrix (hidden x hidden); "head" projects the slice
            of each head by one shared matrix (head size x head size).
        lambda_bias: whether the linear layers that compute the gates have biases.
        lambda_per_head: True: every head has its own gate weights (the paper); False: all heads share the gate weights
            (the published code).
        **kwargs: fields of `ContextFromLayerConfig`, `ContextConfig` and `EncoderConfig`. `initializer_range` does not
            apply to gate weights, whose initial standard deviation is 0.01.

    Raises:
        TypeError, ValueError: a field is unknown or invalid; the message names the field and the expected value.
    """

    def __init__(
        self,
        *,
        context_projection: str,
        lambda_bias: bool,
        lambda_per_head: bool = False,
        **kwargs: Unpack[ContextFromLayerFields],
    ):
        self.context_projection = context_projection
        self.lambda_bias = lambda_bias
        self.lambda_per_head = lambda_per_head
        super().__init__(**kwargs)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first invalid field."""
        super().check()
        check_choice("context_projection", self.context_projection, CONTEXT_PROJECTIONS)
        for field in ("lambda_bias", "lambda_per_head"):
            check_flag(field, getattr(self, field))


def _context_names(contexts: int | Sequence[str]) -> list[str]:
    """Returns the names of the contexts; an integer is the number of generated names CONTEXT_0, CONTEXT_1, ..."""
    if isinstance(contexts, int) and not isinstance(contexts, bool):
        check_size("contexts", contexts)
        return [f"CONTEXT_{i}" for i in range(contexts)]
    if isinstance(contexts, str) or not isinstance(contexts, Sequence):
        raise TypeError(f"contexts: expected a list of names or a number of contexts, got {contexts!r}")
    names = list(contexts)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"contexts: expected strings, got the name {name!r} of type {type(name).__name__}")
    if not names:
        raise ValueError("contexts: expected at least one name, got an empty list")
    if len(names) > MOST["contexts"][0]:
        raise ValueError(f"contexts: expected at most {limit('contexts')}, got {len(names)} names")
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ValueError(f"contexts: expected distinct names, got {', '.join(map(repr, twice))} more than once")
    return names

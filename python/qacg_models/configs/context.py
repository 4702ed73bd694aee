"""What configurations of encoders with a context share: the names of the contexts."""

from collections import Counter
from collections.abc import Sequence

from typing_extensions import Unpack

from qacg_models.configs.encoder import EncoderConfig, EncoderFields
from qacg_models.configs.field_checks import check_flag, check_one_of, check_size
from qacg_models.configs.limits import MOST, limit

CONTEXT_PROJECTIONS = ("hidden", "head")


class ContextFields(EncoderFields, total=False):
    """The fields of `ContextConfig`, for the signatures of those that hand them on."""

    contexts: int | Sequence[str]
    context_standalone: bool


class ContextConfig(EncoderConfig):
    """An encoder that is told what to look for by a context id.

    Args:
        contexts: names of the contexts, in the order of their ids, or their number.
        context_standalone: whether inputs leave the aspect to the context id, without a second sentence.
            Inputs are built at prediction as they were in training, and the model refuses such a sentence.
        Others: as in `EncoderConfig`.

    Raises:
        TypeError, ValueError: naming the field, its value and its limit.
    """

    def __init__(
        self,
        *,
        contexts: int | Sequence[str] = 8,
        context_standalone: bool = False,
        **kwargs: Unpack[EncoderFields],
    ):
        if "num_contexts" in kwargs:
            raise TypeError("num_contexts: derived from contexts; pass contexts=N or contexts=[names]")
        self.contexts = _context_names(contexts)
        self.context_standalone = context_standalone
        super().__init__(**kwargs)

    @property
    def num_contexts(self) -> int:
        """Number of contexts, the rows of the context embedding."""
        return len(self.contexts)

    @property
    def context2id(self) -> dict[str, int]:
        """Id of every context by name."""
        return {name: i for i, name in enumerate(self.contexts)}

    def context_id(self, name: str) -> int:
        """Id of the context called `name`; ValueError lists the known names."""
        try:
            return self.contexts.index(name)
        except ValueError:
            known = ", ".join(map(repr, self.contexts))
            raise ValueError(f"context: got {name!r}, wanted one of {known}") from None

    def check(self) -> None:
        """Raises TypeError or ValueError for the first field that is out of its limits."""
        super().check()
        check_flag("context_standalone", self.context_standalone)
        self.contexts = _context_names(self.contexts)


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


def _context_names(contexts: int | Sequence[str]) -> list[str]:
    """Names of the contexts; an integer stands for that many generated names, as LABEL_0 does for labels."""
    if isinstance(contexts, int) and not isinstance(contexts, bool):
        check_size("contexts", contexts)
        return [f"CONTEXT_{i}" for i in range(contexts)]
    if isinstance(contexts, str) or not isinstance(contexts, Sequence):
        raise TypeError(f"contexts: got {contexts!r}, wanted a list of names or a number of contexts")
    names = list(contexts)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"contexts: got the name {name!r} of type {type(name).__name__}, wanted strings")
    if not names:
        raise ValueError("contexts: got an empty list, wanted at least one name")
    if len(names) > MOST["contexts"][0]:
        raise ValueError(f"contexts: got {len(names)} names, wanted at most {limit('contexts')}")
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ValueError(f"contexts: got {', '.join(map(repr, twice))} more than once, wanted distinct names")
    return names

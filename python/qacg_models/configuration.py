"""Configuration of QACG-BERT: the published field names, and every published variant as a named choice."""

from collections.abc import Sequence

from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

POOLERS = ("cls", "attention")
CONTEXT_PROJECTIONS = ("hidden", "head")

_POSITIVE_INTEGERS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
_PROBABILITIES = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def _context_names(contexts: int | Sequence[str]) -> list[str]:
    """Names of the contexts; an integer stands for that many generated names, as LABEL_0 does for labels."""
    if isinstance(contexts, int) and not isinstance(contexts, bool):
        if contexts < 1:
            raise ValueError(f"contexts: got {contexts}, wanted at least 1")
        return [f"CONTEXT_{i}" for i in range(contexts)]
    if isinstance(contexts, str) or not isinstance(contexts, Sequence):
        raise TypeError(f"contexts: got {contexts!r}, wanted a list of names or a number of contexts")
    names = list(contexts)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"contexts: got the name {name!r} of type {type(name).__name__}, wanted strings")
    if not names:
        raise ValueError("contexts: got an empty list, wanted at least one name")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"contexts: got {', '.join(map(repr, twice))} more than once, wanted distinct names")
    return names


class QACGBertConfig(PreTrainedConfig):
    """Sizes and variants of a QACG-BERT.

    The published variants are `pooler="cls", context_projection="hidden", lambda_bias=True` (the released
    code, and the default here) and `pooler="attention", context_projection="head", lambda_bias=False`.

    Args:
        vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size,
        max_position_embeddings, type_vocab_size: sizes, as in BERT.
        hidden_act: name of an activation of transformers; "gelu" is the exact one, with erf.
        hidden_dropout_prob: dropout of hidden states, pooled output and the pooler's gate.
        attention_probs_dropout_prob: dropout of the map A and of context queries and keys.
        initializer_range: standard deviation of initial weights (lambda weights start at 0.01).
        layer_norm_eps: added to the variance inside LayerNorm.
        pooler: "cls" takes the first token, "attention" a learned average over tokens.
        context_projection: "hidden" projects the whole context (hidden x hidden), "head" each head's slice
            with one matrix shared by the heads (head size x head size).
        lambda_bias: whether the layers of the gate have biases.
        lambda_per_head: whether every head has gate weights of its own (the paper) or all share them (the
            published code).
        contexts: names of the contexts, in the order of their ids, or their number.
        context_standalone: whether inputs leave the aspect to the context id, without a second sentence.
            The model does the same either way; it is kept here so that inputs are built at prediction as
            they were in training.
        quasi_scale, beta, gamma: scalars of quasi-attention and of its gate, 1 in the published code.

    Raises:
        TypeError, ValueError: naming the field, its value and its limit.
    """

    model_type = "qacg_bert"

    def __init__(
        self,
        *,
        vocab_size: int = 30522,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        intermediate_size: int = 3072,
        hidden_act: str = "gelu",
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 512,
        type_vocab_size: int = 2,
        initializer_range: float = 0.02,
        layer_norm_eps: float = 1e-12,
        pooler: str = "cls",
        context_projection: str = "hidden",
        lambda_bias: bool = True,
        lambda_per_head: bool = False,
        contexts: int | Sequence[str] = 8,
        context_standalone: bool = False,
        quasi_scale: float = 1.0,
        beta: float = 1.0,
        gamma: float = 1.0,
        **kwargs,  # the fields every transformers configuration has: id2label, output_hidden_states, ...
    ):
        if "num_contexts" in kwargs:
            raise TypeError("num_contexts: derived from contexts; pass contexts=N or contexts=[names]")
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.max_position_embeddings = max_position_embeddings
        self.type_vocab_size = type_vocab_size
        self.initializer_range = initializer_range
        self.layer_norm_eps = layer_norm_eps
        self.pooler = pooler
        self.context_projection = context_projection
        self.lambda_bias = lambda_bias
        self.lambda_per_head = lambda_per_head
        self.contexts = _context_names(contexts)
        self.context_standalone = context_standalone
        self.quasi_scale = quasi_scale
        self.beta = beta
        self.gamma = gamma
        super().__init__(**kwargs)
        self.check()

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
        for field in _POSITIVE_INTEGERS:
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{field}: got {value!r}, wanted an integer")
            if value < 1:
                raise ValueError(f"{field}: got {value}, wanted at least 1")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size: got {self.hidden_size}, wanted a multiple of "
                f"num_attention_heads = {self.num_attention_heads}"
            )
        for field in _PROBABILITIES:
            value = getattr(self, field)
            if not 0.0 <= value < 1.0:
                raise ValueError(f"{field}: got {value}, wanted a probability in [0, 1)")
        for field, known in (
            ("pooler", POOLERS),
            ("context_projection", CONTEXT_PROJECTIONS),
            ("hidden_act", tuple(ACT2FN)),
        ):
            value = getattr(self, field)
            if value not in known:
                raise ValueError(f"{field}: got {value!r}, wanted one of {', '.join(map(repr, known))}")
        if self.problem_type not in (None, "single_label_classification"):
            raise ValueError(
                f"problem_type: got {self.problem_type!r}, wanted 'single_label_classification' (or None)"
            )
        self.contexts = _context_names(self.contexts)

"""What the configurations of all encoders here share: BERT's fields, labels, and checks that name the field."""

import difflib
import inspect
from typing import Any, ClassVar, Literal

import torch
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from typing_extensions import TypedDict, Unpack

from qacg_models.configs.field_checks import (
    check_dtype,
    check_integer,
    check_number,
    check_one_of,
    check_probability,
    check_size,
)

POOLERS = ("cls", "attention")
LAYER_NORM_INITIALIZERS = ("identity", "normal")
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")

_POSITIVE_INTEGERS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
_PROBABILITIES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")

# Fields of a transformers configuration that say nothing about what these models compute.
_COMMON = {
    *inspect.signature(PreTrainedConfig.__init__).parameters,
    *("num_labels", "output_attentions", "attn_implementation", "experts_implementation", "torch_dtype"),
    *("name_or_path", "_name_or_path", "_commit_hash"),
    *("transformers_version", "auto_map", "custom_pipelines", "quantization_config", "tokenizer_class"),
    *("tie_word_embeddings", "use_cache", "finetuning_task", "task_specific_params", "prefix", "output_past"),
    *("bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "mask_token_id"),
} - {"self", "kwargs"}

# Fields of published BERT configurations that would change the computation, with the one value there is here.
_FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "chunk_size_feed_forward": 0,
    "gradient_checkpointing": False,  # an old switch; today model.gradient_checkpointing_enable()
    "directionality": "bidi",
    "pooler_type": "first_token_transform",
}
# Published beside pooler_type; sizes of a pooler that BERT does not have. They are dropped.
_OF_ANOTHER_POOLER = {*("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head")}


ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]


class CommonFields(TypedDict, total=False):
    """Fields of transformers' PreTrainedConfig that mean something here; each may be left out."""

    architectures: list[str] | None
    attn_implementation: str | dict[str, str] | None
    dtype: str | torch.dtype | None
    id2label: dict[int, str] | dict[str, str] | None
    label2id: dict[str, int] | dict[str, str] | None
    model_type: str
    name_or_path: str
    num_labels: int
    output_attentions: bool
    output_hidden_states: bool
    problem_type: ProblemType | None
    return_dict: bool
    transformers_version: str | None


class PublishedFields(CommonFields, total=False):
    """Fields that `EncoderConfig` reads beside its own."""

    full_pooler: bool | None  # what published configurations have for `pooler`


class EncoderFields(PublishedFields, total=False):
    """The fields of `EncoderConfig`, for the signatures of those that hand them on."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    classifier_dropout: float | None
    max_position_embeddings: int
    type_vocab_size: int
    initializer_range: float
    layer_norm_initializer: str
    layer_norm_eps: float
    pad_token_id: int | None
    pooler: str | None
    unpad: bool


class EncoderConfig(PreTrainedConfig):
    """The fields of BERT, under the names that published configurations have for them.

    Reads the configuration files of this package, of transformers' BERT and of the TensorFlow release. Unlike
    transformers' configurations it refuses fields that it does not know.

    Args:
        vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size,
        max_position_embeddings, type_vocab_size: sizes.
        hidden_act: name of an activation of transformers; "gelu" is the exact one, with erf.
        hidden_dropout_prob: dropout of hidden states, pooled output and the attention pooler's gate.
        attention_probs_dropout_prob: dropout of attention maps.
        classifier_dropout: dropout before the classifier; None: hidden_dropout_prob.
        initializer_range: standard deviation of initial weights.
        layer_norm_initializer: "identity" starts every LayerNorm with weights 1 and biases 0, as BERT was trained,
            "normal" both with N(0, initializer_range²), as published code says it for models without a checkpoint.
        layer_norm_eps: added to the variance inside LayerNorm.
        pad_token_id: id of padding; its embedding is trained like any other.
        pooler: "cls" takes the first token, "attention" a learned average over tokens. The published
            `full_pooler`, true or false, is read as "attention" or "cls".
        unpad: run padded batches without their padding, which gives every token and every pooled output what
            padding gives it. What is returned for padding is then 0, and hooks inside see (T, ...) in place of
            (B, L, ...). It does nothing on a GPU, where finding the padding would synchronise, under
            torch.compile, for a model without pooler, and where maps are asked for.

    Raises:
        TypeError, ValueError: naming the field, its value and its limit.
    """

    # Other model types whose configuration files have these fields and no others.
    reads: ClassVar[tuple[str, ...]] = ("bert",)

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # Transformers makes every configuration a dataclass, whose generated == knows the fields of
        # PreTrainedConfig only: two encoders of different sizes would be equal.
        cls.__eq__ = EncoderConfig.__eq__

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
        classifier_dropout: float | None = None,
        max_position_embeddings: int = 512,
        type_vocab_size: int = 2,
        initializer_range: float = 0.02,
        layer_norm_initializer: str = "identity",
        layer_norm_eps: float = 1e-12,
        pad_token_id: int | None = 0,
        pooler: str | None = None,
        unpad: bool = False,
        **kwargs: Unpack[PublishedFields],
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.classifier_dropout = classifier_dropout
        self.max_position_embeddings = max_position_embeddings
        self.type_vocab_size = type_vocab_size
        self.initializer_range = initializer_range
        self.layer_norm_initializer = layer_norm_initializer
        self.layer_norm_eps = layer_norm_eps
        self.pooler = _pooler(pooler, kwargs.pop("full_pooler", None))
        self.unpad = unpad
        rest: dict[str, Any] = dict(kwargs)
        self._check_known(rest)
        _check_label_count(rest)
        for field in ("dtype", "torch_dtype"):
            check_dtype(field, rest.get(field))
        super().__init__(**rest)
        self.pad_token_id = pad_token_id  # not earlier: transformers would compare it before check() does
        if self.label2id is None:  # type: ignore[has-type]  # transformers declares it
            self.label2id = {name: i for i, name in self.id2label.items()}
        self.check()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and contents(self) == contents(other)

    __hash__ = None  # type: ignore[assignment]  # fields may change

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path, **kwargs):
        """As in transformers; the model types in `reads` pass as this one, without its warning."""
        found, kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        if found.get("model_type") in cls.reads:
            found = found | {"model_type": cls.model_type}
        return found, kwargs

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        """As in transformers: `kwargs` win. A new num_labels drops stored names of another number of labels."""
        stored = config_dict.get("id2label")
        wanted = kwargs.get("num_labels")
        if stored is not None and wanted is not None and len(stored) != wanted:
            dropped = ("id2label", "label2id", "num_labels")
            config_dict = {name: value for name, value in config_dict.items() if name not in dropped}
        return super().from_dict(config_dict, **kwargs)

    def _check_known(self, given: dict[str, object]) -> None:
        """Takes the fields that are settled here out of `given`; TypeError for one that nobody knows."""
        kind = given.pop("model_type", self.model_type)
        if kind not in (self.model_type, *self.reads):
            known = ", ".join(map(repr, (self.model_type, *self.reads)))
            raise ValueError(f"model_type: got {kind!r}, wanted one of {known} for {type(self).__name__}")
        for field, only in _FIXED.items():
            value = given.pop(field, only)
            if value != only:
                raise ValueError(f"{field}: got {value!r}, wanted {only!r}; these models have nothing else")
        for field in _OF_ANOTHER_POOLER & given.keys():
            del given[field]
        own = {*vars(self), "pad_token_id", "num_labels", "id2label", "label2id", "problem_type"}
        for field in given:
            if field not in _COMMON:
                close = difflib.get_close_matches(field, own, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise TypeError(f"{field}: {type(self).__name__} has no such field{hint}")

    @property
    def least_weights(self) -> int:
        """Number of weights in the embeddings and the dense layers; biases, contexts and heads come on top."""
        rows = self.vocab_size + self.max_position_embeddings + self.type_vocab_size
        layer = 4 * self.hidden_size + 2 * self.intermediate_size
        return self.hidden_size * (rows + self.num_hidden_layers * layer)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first field that is out of its limits."""
        for field in _POSITIVE_INTEGERS:
            check_size(field, getattr(self, field))
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size: got {self.hidden_size}, wanted a multiple of "
                f"num_attention_heads = {self.num_attention_heads}"
            )
        for field in _PROBABILITIES:
            value = getattr(self, field)
            if field == "classifier_dropout" and value is None:
                continue
            check_probability(field, value)
        check_number("initializer_range", self.initializer_range, at_least=0.0)
        check_number("layer_norm_eps", self.layer_norm_eps, at_least=0.0)
        if self.pad_token_id is not None:
            check_integer("pad_token_id", self.pad_token_id, 0)
            if self.pad_token_id >= self.vocab_size:
                raise ValueError(
                    f"pad_token_id: got {self.pad_token_id}, wanted less than vocab_size = {self.vocab_size}"
                )
        check_one_of("layer_norm_initializer", self.layer_norm_initializer, LAYER_NORM_INITIALIZERS)
        check_one_of("pooler", self.pooler, POOLERS)
        if not isinstance(self.unpad, bool):
            raise TypeError(f"unpad: got {self.unpad!r}, wanted True or False")
        check_one_of("hidden_act", self.hidden_act, tuple(ACT2FN))
        if self.problem_type is not None:
            check_one_of("problem_type", self.problem_type, PROBLEM_TYPES)
        self._check_labels()

    def _check_labels(self) -> None:
        ids = sorted(self.id2label)
        if ids != list(range(len(ids))) or not ids:
            raise ValueError(f"id2label: got the ids {ids}, wanted 0, 1, ... without a gap")
        for name, i in self.label2id.items():
            if self.id2label.get(i) != name:
                raise ValueError(f"label2id: got {name!r} as {i}, but id2label calls {i} {self.id2label.get(i)!r}")
        if self.problem_type == "single_label_classification" and self.num_labels == 1:
            raise ValueError(
                "problem_type: got 'single_label_classification' with num_labels = 1, wanted 'regression', "
                "or at least 2 labels"
            )


def contents(config: PreTrainedConfig) -> dict[str, object]:
    """Every field, without the private ones, which say where a configuration was loaded from."""
    return {name: value for name, value in config.to_dict().items() if not name.startswith("_")}


def _pooler(pooler: str | None, full_pooler: object) -> str:
    if full_pooler is None:
        return "cls" if pooler is None else pooler
    if not isinstance(full_pooler, bool):
        raise TypeError(f"full_pooler: got {full_pooler!r}, wanted True or False")
    meant = "attention" if full_pooler else "cls"
    if pooler not in (None, meant):
        raise ValueError(f"full_pooler: got {full_pooler}, which is pooler={meant!r}, beside pooler={pooler!r}")
    return meant


def _check_label_count(given: dict[str, object]) -> None:
    names, count = given.get("id2label"), given.get("num_labels")
    if count is not None:
        check_size("num_labels", count)
    if names is not None and not isinstance(names, dict):
        raise TypeError(f"id2label: got {type(names).__name__}, wanted a dict from id to name")
    if names is not None and count is not None and len(names) != count:
        raise ValueError(f"num_labels: got {count}, but id2label has {len(names)} names")

"""Base classes of all configurations, and of those of the encoders."""

import difflib
import inspect
from typing import Any, ClassVar

import torch
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from qacg_kernels.call.validation import check_choice, check_flag
from qacg_models.checkpoints.loading import LABEL_FIELDS
from qacg_models.layers.embeddings import POOLERS
from qacg_models.utils.fields import check_integer, check_number, check_probability

LAYER_NORM_INITIALIZERS = ("identity", "normal")

SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
# Fields of transformers configurations that are accepted in addition to those of the class, declared or not.
_COMMON = {
    *inspect.signature(PreTrainedConfig.__init__).parameters,
    *vars(PreTrainedConfig()),
    *("model_type", "num_labels", "output_attentions", "attn_implementation", "experts_implementation", "torch_dtype"),
    *("name_or_path", "auto_map", "custom_pipelines", "quantization_config", "tokenizer_class"),
    *("tie_word_embeddings", "use_cache", "finetuning_task", "task_specific_params", "prefix", "output_past"),
    *("bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "mask_token_id"),
} - {"self", "kwargs"}
# Fields of published BERT configurations that would change the computation, with their only supported value.
_FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "chunk_size_feed_forward": 0,
    "gradient_checkpointing": False,  # replaced by model.gradient_checkpointing_enable()
    "directionality": "bidi",
    "pooler_type": "first_token_transform",
}
_MODERNBERT = ("rotary_theta", "local_rotary_theta", "local_attention", "local_layers")
# Sizes of a pooler that BERT does not have. Published configurations have them beside pooler_type; they are dropped.
_OTHER_POOLER_FIELDS = ("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head")


class CheckedConfig(PreTrainedConfig):
    """Base of all configurations of this package, which compare by all fields.

    Raises:
        TypeError, ValueError: a field is unknown or invalid; the message names the field and the expected value.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # Transformers makes every configuration a dataclass, whose generated __eq__ compares the fields of
        # PreTrainedConfig only: two encoders of different sizes would be equal.
        cls.__eq__ = CheckedConfig.__eq__

    def __init__(self, **kwargs: Any):
        _check_known(kwargs, self)
        _complete_labels(kwargs)
        check_dtypes(kwargs)
        super().__init__(**kwargs)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and _contents(self) == _contents(other)

    __hash__ = None  # type: ignore[assignment]  # fields may change

    def check(self) -> None:
        """Raises ValueError unless id2label and label2id are valid and agree."""
        ids = sorted(self.id2label)
        if ids != list(range(len(ids))) or not ids:
            raise ValueError(f"id2label: expected the ids 0, 1, ... without a gap, got {ids}")
        for name, i in (self.label2id or {}).items():
            if self.id2label.get(i) != name:
                raise ValueError(f"label2id: expected {self.id2label.get(i)!r} for {i} as in id2label, got {name!r}")


class EncoderConfig(CheckedConfig):
    """Base configuration of the encoders: the fields of BERT, with their published names.

    The class reads configuration files of this package, of transformers' BERT and of the TensorFlow release. Unlike
    configurations of transformers, the class raises TypeError for unknown fields.

    Args:
        vocab_size: number of word embeddings.
        hidden_size: width of the hidden states, a multiple of num_attention_heads.
        num_hidden_layers: number of layers.
        num_attention_heads: number of attention heads.
        intermediate_size: width of the hidden layer of the feed-forward blocks.
        hidden_act: name of an activation of transformers; "gelu" is the exact GELU, with erf.
        hidden_dropout_prob: dropout probability of hidden states and in the attention pooler.
        attention_probs_dropout_prob: dropout probability of attention matrices.
        classifier_dropout: dropout probability before the classifier; None: hidden_dropout_prob.
        max_position_embeddings: number of position embeddings, the largest length in tokens.
        type_vocab_size: number of token types.
        initializer_range: standard deviation of initial weights.
        layer_norm_initializer: "identity" initialises every LayerNorm with weights 1 and biases 0, as for
            BERT; "normal" draws both from N(0, initializer_range²), as the published code does without a checkpoint.
        layer_norm_eps: added to the variance in LayerNorm.
        pad_token_id: id of the padding token, or None. Its embedding is trained like other embeddings.
        pooler: "cls" reads the first token, "attention" a learned average over tokens; None: "cls". The published
            field `full_pooler`, true or false, is read as "attention" or "cls".
        unpad: whether the encoder removes the padding of padded batches. Outputs for tokens and the
            pooled output stay the same; outputs for padding are 0. Hooks receive (T, ...) for T tokens instead of
            (B, L, ...). No effect on a GPU (finding the padding would synchronise with the CPU), under torch.compile,
            for models without pooler, or with output_attentions.
        embedding_size: width of the embeddings and of inputs_embeds, from which a linear layer maps to hidden_size, as
            in ELECTRA; None: hidden_size, without such a layer.
        modernbert: None for layers of BERT. For layers of ModernBERT, whose position_ids must be 0, 1, ... or None, a
            dict with local_layers, the list of the indices of layers in which a token attends to tokens at a distance
            of at most local_attention // 2; local_attention; and rotary_theta and local_rotary_theta, the bases of the
            rotary positions in other layers and in local layers.
        **kwargs: fields of every transformers configuration.
    """

    # Other model types whose configuration files have the same fields.
    reads: ClassVar[tuple[str, ...]] = ("bert",)

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
        embedding_size: int | None = None,
        modernbert: dict[str, Any] | None = None,
        **kwargs: Any,
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
        self.unpad = unpad
        self.embedding_size = embedding_size
        self.modernbert = modernbert
        if (full_pooler := kwargs.pop("full_pooler", None)) is not None:
            check_flag("full_pooler", full_pooler)
            meant = "attention" if full_pooler else "cls"
            if pooler not in (None, meant):
                raise ValueError(
                    f"full_pooler: expected None with pooler={pooler!r}, got {full_pooler}, which means {meant!r}"
                )
            pooler = meant
        self.pooler = "cls" if pooler is None else pooler
        self._remove_fixed_fields(kwargs)
        super().__init__(**kwargs)
        self.pad_token_id = pad_token_id  # after super().__init__, which would raise an error with another message
        if self.label2id is None:  # type: ignore[has-type]  # declared in transformers
            self.label2id = {name: i for i, name in self.id2label.items()}
        self.check()

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path, **kwargs):
        """Reads a configuration file as transformers does; a model type in `reads` becomes that of this class."""
        found, kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        if found.get("model_type") in cls.reads:
            found = found | {"model_type": cls.model_type}
        return found, kwargs

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        """Builds a configuration as transformers does; drops stored label names if their number is not `num_labels`."""
        stored = config_dict.get("id2label")
        num_labels = kwargs.get("num_labels")
        if stored is not None and num_labels is not None and len(stored) != num_labels:
            config_dict = {name: value for name, value in config_dict.items() if name not in LABEL_FIELDS}
        return super().from_dict(config_dict, **kwargs)

    def _remove_fixed_fields(self, given: dict[str, Any]) -> None:
        """Removes the model type, _FIXED and _OTHER_POOLER_FIELDS; raises ValueError for another value of a field."""
        kind = given.pop("model_type", self.model_type)
        if kind not in (self.model_type, *self.reads):
            known = ", ".join(map(repr, (self.model_type, *self.reads)))
            raise ValueError(f"model_type: expected one of {known} for {type(self).__name__}, got {kind!r}")
        for field, only in _FIXED.items():
            value = given.pop(field, only)
            if value != only:
                raise ValueError(f"{field}: expected {only!r}, got {value!r}. No other value is supported.")
        for field in _OTHER_POOLER_FIELDS:
            given.pop(field, None)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first invalid field."""
        for field in SIZES:
            check_integer(field, getattr(self, field), 1)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size: expected a multiple of num_attention_heads = {self.num_attention_heads}, "
                f"got {self.hidden_size}"
            )
        for field in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            check_probability(field, getattr(self, field))
        if self.classifier_dropout is not None:
            check_probability("classifier_dropout", self.classifier_dropout)
        for field in ("initializer_range", "layer_norm_eps"):
            check_number(field, getattr(self, field), at_least=0.0)
        if self.pad_token_id is not None:
            check_integer("pad_token_id", self.pad_token_id, 0, below=self.vocab_size)
        check_choice("layer_norm_initializer", self.layer_norm_initializer, LAYER_NORM_INITIALIZERS)
        check_choice("pooler", self.pooler, tuple(POOLERS))
        check_flag("unpad", self.unpad)
        check_choice("hidden_act", self.hidden_act, tuple(ACT2FN))
        if self.embedding_size is not None:
            check_integer("embedding_size", self.embedding_size, 1)
        if self.modernbert is not None:
            self._check_modernbert(self.modernbert)
        super().check()

    def _check_modernbert(self, fields: object) -> None:
        if not isinstance(fields, dict) or sorted(fields) != sorted(_MODERNBERT):
            raise ValueError(f"modernbert: expected None or a dict with {', '.join(_MODERNBERT)}, got {fields!r}")
        for field in ("rotary_theta", "local_rotary_theta"):
            check_number(f"modernbert.{field}", fields[field], at_least=1.0)
        check_integer("modernbert.local_attention", fields["local_attention"], 0)
        if not isinstance(fields["local_layers"], list):
            raise TypeError(f"modernbert.local_layers: expected a list, got {fields['local_layers']!r}")
        for layer in fields["local_layers"]:
            check_integer("modernbert.local_layers", layer, 0, below=self.num_hidden_layers)
        if (size := self.hidden_size // self.num_attention_heads) % 2:
            raise ValueError(f"modernbert: expected heads of an even size, which rotary positions need, got {size}")


def _contents(config: PreTrainedConfig) -> dict[str, Any]:
    """Returns the public fields by name. Private fields, such as the path of the loaded file, are left out."""
    found = {name: value for name, value in config.to_dict().items() if not name.startswith("_")}
    encoder = getattr(config, "encoder", None)
    return found | {"encoder": _contents(encoder)} if isinstance(encoder, PreTrainedConfig) else found


def _check_known(given: dict[str, Any], config: PreTrainedConfig) -> None:
    """Raises TypeError for a field that a configuration does not have, with the most similar field in the message."""
    for field in given:
        if field not in _COMMON and not field.startswith("_"):
            own = {name for name in vars(config) if not name.startswith("_")}
            close = difflib.get_close_matches(field, own | {"num_labels", "id2label", "label2id", "problem_type"}, n=1)
            hint = f". Did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{field}: expected a field of {type(config).__name__}, got an unknown name{hint}")


def check_dtypes(fields: dict[str, Any], path: str = "") -> None:
    """Raises ValueError unless `dtype` and `torch_dtype` are missing, None, or a floating-point dtype or its name."""
    for field in ("dtype", "torch_dtype"):
        value = fields.get(field)
        named = getattr(torch, value, None) if isinstance(value, str) else value
        if value is not None and not (isinstance(named, torch.dtype) and named.is_floating_point):
            expected = "expected a floating-point dtype of torch, such as 'float32'"
            raise ValueError(f"{path}{field}: {expected}, got {value!r}")


def _complete_labels(given: dict[str, Any]) -> None:
    """Checks the fields id2label, label2id and num_labels before transformers reads them.

    If id2label is missing, it is added from label2id, because transformers ignores label2id without id2label.
    """
    names, count = given.get("id2label"), given.get("num_labels")
    if count is not None:
        check_integer("num_labels", count, 1)
    if names is not None and not isinstance(names, dict):
        raise TypeError(f"id2label: expected a dict from id to name, got {type(names).__name__}")
    if not isinstance(ids := given.get("label2id"), dict | None):
        raise TypeError(f"label2id: expected a dict from name to id, got {type(ids).__name__}")
    if names is None and ids:
        names = given["id2label"] = {i: name for name, i in ids.items()}
    for key in names or ():
        if not str(key).isdecimal():
            raise ValueError(f"id2label: expected integers from 0 as ids, got {key!r}")
    if names is not None and count is not None and len(names) != count:
        raise ValueError(f"num_labels: expected {len(names)} as in id2label, got {count}")

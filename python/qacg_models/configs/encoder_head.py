"""Base configuration of heads over any encoder, with the configuration of the encoder inside."""

import copy
import dataclasses
from typing import Any, ClassVar, cast

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig
from typing_extensions import Unpack

from qacg_models.configs import encoders  # noqa: F401 - registers the encoders of this package
from qacg_models.configs.encoder import CommonFields, check_labels, complete_labels, contents, unknown_field
from qacg_models.configs.field_checks import check_dtypes, check_size
from qacg_models.configs.limits import MOST

# Fields of every transformers configuration, including fields that transformers accepts or writes but does not declare.
_COMMON = {
    *(field.name for field in dataclasses.fields(PreTrainedConfig)),
    *vars(PreTrainedConfig()),
    *("model_type", "num_labels", "output_attentions", "name_or_path", "torch_dtype", "auto_map"),
    *("attn_implementation", "experts_implementation", "quantization_config", "tie_word_embeddings"),
}


class EncoderHeadConfig(PreTrainedConfig):
    """Configuration of a head over a text encoder.

    Args:
        encoder: configuration of the encoder, or its fields with `model_type`; None: transformers' BERT. Encoders with
            contexts and encoder-decoders are not supported. A copy is stored, so a saved model is complete.
        **kwargs: fields of every transformers configuration.

    Raises:
        TypeError, ValueError: a field is unknown or invalid; the message names the field and the expected value.
    """

    sub_configs: ClassVar = {"encoder": AutoConfig}

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # Transformers makes every configuration a dataclass, whose generated __eq__ compares its own fields only.
        cls.__eq__ = EncoderHeadConfig.__eq__

    def __init__(self, *, encoder: PreTrainedConfig | dict | None = None, **kwargs: Unpack[CommonFields]):
        kind = kwargs.pop("model_type", self.model_type)
        if kind != self.model_type:
            raise ValueError(
                f"model_type: expected {self.model_type!r}, got {kind!r}. Pass the configuration of an encoder as the "
                "field encoder."
            )
        self._check_known(dict(kwargs))
        complete_labels(cast(dict[str, Any], kwargs))
        check_dtypes(kwargs)
        self.encoder = _encoder_config(encoder)
        chosen = self.encoder._attn_implementation
        if chosen is not None:
            # Without this entry, transformers would reset the attention implementation of the encoder.
            kwargs.setdefault("attn_implementation", {"encoder": chosen})
        super().__init__(**kwargs)
        self.check()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._parts() == other._parts()

    def _parts(self) -> tuple[dict, dict]:
        own = contents(self)
        del own["encoder"]
        return own, contents(self.encoder)

    __hash__ = None  # type: ignore[assignment]  # fields may change

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """Returns the configuration of the encoder; transformers calls this to read sizes such as hidden_size."""
        return self.encoder

    def check(self) -> None:
        """Raises TypeError or ValueError for the first invalid field."""
        for field in ("hidden_size", "vocab_size"):
            if not isinstance(getattr(self.encoder, field, None), int):
                raise ValueError(
                    f"encoder: expected the configuration of a text encoder, got {type(self.encoder).__name__} "
                    f"without {field}"
                )
        if hasattr(self.encoder, "contexts"):
            raise ValueError(
                f"encoder: expected the configuration of a text encoder, got {type(self.encoder).__name__}, whose "
                "model requires context_ids"
            )
        # Configurations of transformers do not check sizes. The number of labels in `encoder` is not used.
        for field in MOST.keys() - {"num_labels", "contexts"}:
            value = getattr(self.encoder, field, None)
            if isinstance(value, int):
                # Encoders without token types have type_vocab_size = 0.
                check_size(field, value, at_least=int(field != "type_vocab_size"), path="encoder.")
        if getattr(self.encoder, "is_encoder_decoder", False):
            raise ValueError(
                f"encoder: expected the configuration of a text encoder, got {type(self.encoder).__name__} "
                "with a decoder"
            )
        check_labels(self)

    def _check_known(self, given: dict[str, object]) -> None:
        own = {name for name in vars(self) if not name.startswith("_")} | {"encoder"}
        for field in given:
            if field not in _COMMON and not field.startswith("_"):
                raise unknown_field(field, type(self), own)


def _encoder_config(encoder: PreTrainedConfig | dict | None) -> PreTrainedConfig:
    if encoder is None:
        return AutoConfig.for_model("bert")
    if isinstance(encoder, PreTrainedConfig):
        return copy.deepcopy(encoder)
    if not isinstance(encoder, dict):
        raise TypeError(f"encoder: expected a configuration or a dict of its fields, got {type(encoder).__name__}")
    fields = dict(encoder)
    kind = fields.pop("model_type", None)
    if not isinstance(kind, str | None):
        raise TypeError(f"encoder.model_type: expected a string, such as 'bert', got {kind!r}")
    if kind is None:
        raise ValueError("encoder: expected fields with model_type, such as 'bert', got none")
    check_dtypes(fields, path="encoder.")
    try:
        return AutoConfig.for_model(kind, **fields)
    except StrictDataclassError as error:  # neither a TypeError nor a ValueError
        raise ValueError(f"encoder: {' '.join(str(error).split())}") from None
    except ValueError as error:
        if "model identifier" not in str(error):
            raise
        raise ValueError(
            f"encoder.model_type: expected a type that transformers' AutoConfig has, got {kind!r}. "
            "Import the module that registers it."
        ) from None

"""What the configurations of heads over an encoder share: the encoder's own configuration, and no unknown fields."""

from __future__ import annotations

import copy
import dataclasses
import difflib
from typing import ClassVar

from transformers import AutoConfig, PreTrainedConfig
from typing_extensions import Unpack

from qacg_models.configs import encoders  # noqa: F401 - the encoder may be one of ours, saved by another process
from qacg_models.configs.encoder import CommonFields, contents
from qacg_models.configs.field_checks import check_dtype, check_size
from qacg_models.configs.limits import MOST

# Fields that transformers takes or writes beside those it declares; none says what a model computes.
_COMMON = {
    *(field.name for field in dataclasses.fields(PreTrainedConfig)),
    *vars(PreTrainedConfig()),
    *("model_type", "num_labels", "output_attentions", "name_or_path", "torch_dtype", "auto_map"),
    *("attn_implementation", "experts_implementation", "quantization_config", "tie_word_embeddings"),
}


class EncoderHeadConfig(PreTrainedConfig):
    """Configuration of a head over any encoder of transformers.

    Args:
        encoder: configuration of the encoder, or its fields with `model_type`; None: transformers' BERT. It is
            copied. It is stored inside this configuration, so a saved model is complete.
        Others: the fields that every transformers configuration has.

    Raises:
        TypeError, ValueError: naming the field, its value and its limit; also for a field nobody knows.
    """

    sub_configs: ClassVar = {"encoder": AutoConfig}

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # Transformers makes every configuration a dataclass, whose generated == knows its own fields only.
        cls.__eq__ = EncoderHeadConfig.__eq__

    def __init__(self, *, encoder: PreTrainedConfig | dict | None = None, **kwargs: Unpack[CommonFields]):
        kind = kwargs.pop("model_type", self.model_type)
        if kind != self.model_type:
            raise ValueError(
                f"model_type: got {kind!r}, wanted {self.model_type!r}; "
                "an encoder's own configuration goes into the field encoder"
            )
        self._refuse_unknown(dict(kwargs))
        for field in ("dtype", "torch_dtype"):
            check_dtype(field, kwargs.get(field))
        self.encoder = _encoder_config(encoder)
        chosen = self.encoder._attn_implementation
        if chosen is not None:  # transformers would reset the encoder's choice along with this one
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
        """The encoder's configuration, which has the size of the vocabulary and of the initial weights."""
        return self.encoder

    def check(self) -> None:
        """Raises TypeError or ValueError for the first field that is out of its limits."""
        for field in ("hidden_size", "vocab_size"):
            if not isinstance(getattr(self.encoder, field, None), int):
                raise ValueError(f"encoder: {type(self.encoder).__name__} has no {field}, wanted a text encoder's")
        # Encoders of transformers check no sizes; the labels are their own default, which nothing is made of.
        for field in MOST.keys() - {"num_labels", "contexts"}:
            value = getattr(self.encoder, field, None)
            if isinstance(value, int):
                check_size(field, value, at_least=0, path="encoder.")
        if getattr(self.encoder, "is_encoder_decoder", False):
            raise ValueError(f"encoder: {type(self.encoder).__name__} has a decoder too, wanted a text encoder's")

    def _refuse_unknown(self, given: dict[str, object]) -> None:
        own = {name for name in vars(self) if not name.startswith("_")} | {"encoder"}
        for field in given:
            if field not in _COMMON and not field.startswith("_"):
                close = difflib.get_close_matches(field, own, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise TypeError(f"{field}: {type(self).__name__} has no such field{hint}")


def _encoder_config(encoder: PreTrainedConfig | dict | None) -> PreTrainedConfig:
    if encoder is None:
        return AutoConfig.for_model("bert")
    if isinstance(encoder, PreTrainedConfig):
        return copy.deepcopy(encoder)
    if not isinstance(encoder, dict):
        raise TypeError(f"encoder: got {type(encoder).__name__}, wanted a configuration or a dict of its fields")
    fields = dict(encoder)
    kind = fields.pop("model_type", None)
    if kind is None:
        raise ValueError("encoder: got fields without model_type, wanted the name of an encoder, such as 'bert'")
    for field in ("dtype", "torch_dtype"):
        check_dtype(f"encoder.{field}", fields.get(field))
    try:
        return AutoConfig.for_model(kind, **fields)
    except ValueError as error:
        if "model identifier" not in str(error):
            raise
        raise ValueError(
            f"encoder.model_type: got {kind!r}, which transformers' AutoConfig does not know; "
            "import the module that registers it"
        ) from None

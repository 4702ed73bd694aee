"""Base classes of models with a head over any encoder, and of their configurations."""

from __future__ import annotations

import copy
import inspect
from typing import Any, ClassVar

from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from qacg_models.checkpoints.loading import HeadCheckpointLoading
from qacg_models.layers.batch import check_ids, check_position_ids, checked_tokens, key_mask
from qacg_models.models.base import CommonModel, requested
from qacg_models.models.configuration import SIZES, CheckedConfig, check_dtypes
from qacg_models.utils.fields import check_integer


class EncoderHeadConfig(CheckedConfig):
    """Configuration of a head over a text encoder.

    Args:
        encoder: configuration of the encoder, or its fields with `model_type`; None: transformers' BERT. Encoders with
            contexts and encoder-decoders are not supported. A copy is stored, so a saved model is complete.
        **kwargs: fields of every transformers configuration.
    """

    sub_configs: ClassVar = {"encoder": AutoConfig}

    def __init__(self, *, encoder: PreTrainedConfig | dict | None = None, **kwargs: Any):
        kind = kwargs.pop("model_type", self.model_type)
        if kind != self.model_type:
            raise ValueError(
                f"model_type: expected {self.model_type!r}, got {kind!r}. Pass the configuration of an encoder as the "
                "field encoder."
            )
        self.encoder = _encoder_config(encoder)
        chosen = self.encoder._attn_implementation
        if chosen is not None:
            # Without this entry, transformers would reset the attention implementation of the encoder.
            kwargs.setdefault("attn_implementation", {"encoder": chosen})
        super().__init__(**kwargs)
        self.check()

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """Returns the configuration of the encoder; transformers calls this to read sizes such as hidden_size."""
        return self.encoder

    def check(self) -> None:
        """Raises TypeError or ValueError for the first invalid field."""
        sizes = ("hidden_size", "vocab_size")
        wrong = [f" without {size}" for size in sizes if not isinstance(getattr(self.encoder, size, None), int)]
        if hasattr(self.encoder, "contexts"):
            wrong.append(", whose model requires context_ids")
        if getattr(self.encoder, "is_encoder_decoder", False):
            wrong.append(" with a decoder")
        if wrong:
            kind = type(self.encoder).__name__
            raise ValueError(f"encoder: expected the configuration of a text encoder, got {kind}{wrong[0]}")
        for field in SIZES:  # configurations of transformers do not check them; type_vocab_size 0 is for no token types
            value = getattr(self.encoder, field, None)
            if isinstance(value, int):
                check_integer(f"encoder.{field}", value, int(field != "type_vocab_size"))
        super().check()


def _encoder_config(encoder: PreTrainedConfig | dict | None) -> PreTrainedConfig:
    if encoder is None:
        return AutoConfig.for_model("bert")
    if isinstance(encoder, PreTrainedConfig):
        return copy.deepcopy(encoder)
    if not isinstance(encoder, dict):
        raise TypeError(f"encoder: expected a configuration or a dict of its fields, got {type(encoder).__name__}")
    fields = dict(encoder)
    kind = fields.pop("model_type", None)
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ValueError(
            f"encoder.model_type: expected a type that transformers' AutoConfig has, such as 'bert', got {kind!r}. "
            "Import the module that registers it."
        )
    check_dtypes(fields, path="encoder.")
    try:
        return AutoConfig.for_model(kind, **fields)
    except StrictDataclassError as error:  # neither a TypeError nor a ValueError
        raise ValueError(f"encoder: {' '.join(str(error).split())}") from None


class EncoderHeadModel(HeadCheckpointLoading, CommonModel):
    """Base class of models with a head over an encoder, in the attribute whose name is `base_model_prefix`.

    The encoder is any text encoder of AutoModel whose output has `last_hidden_state`, and which requires only inputs
    that `encode` passes, such as `BertModel` of this package.
    """

    config: EncoderHeadConfig
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """Returns the requested name, or "sdpa" for None. The encoder checks it; a head has only one implementation."""
        return requested_attention or "sdpa"

    @classmethod
    def from_encoder(cls, encoder: PreTrainedModel, config: EncoderHeadConfig | None = None) -> EncoderHeadModel:
        """Builds a model with a new head over `encoder`.

        The encoder becomes part of the model with its weights and attention implementation. Its pooler is removed if
        the constructor of the encoder has the argument `add_pooling_layer`.

        Args:
            encoder: a transformers model, such as the result of AutoModel.from_pretrained(folder).
            config: configuration of the head; None: the defaults. The model gets a copy, whose field `encoder` is
                replaced by the configuration of `encoder`.

        Returns:
            The model, with the dtype, the device and the training mode of the encoder.

        Raises:
            TypeError, ValueError: an argument or a field of a configuration is invalid; the message names it.
        """
        if not isinstance(encoder, PreTrainedModel):
            raise TypeError(f"encoder: expected a transformers PreTrainedModel, got {type(encoder).__name__}")
        if config is not None and not isinstance(config, cls.config_class):
            raise TypeError(f"config: expected {cls.config_class.__name__}, got {type(config).__name__}")
        config = cls.config_class(encoder=encoder.config) if config is None else copy.deepcopy(config)
        config.encoder = encoder.config
        return cls(config, encoder).to(encoder.dtype).to(encoder.device).train(encoder.training)

    def _set_encoder(self, encoder: PreTrainedModel | None) -> None:
        """Stores the encoder, or builds one from `config.encoder` for None, and removes its pooler if it may."""
        self.config.check()
        if encoder is None:
            encoder = AutoModel.from_config(self.config.encoder)
        if "add_pooling_layer" in inspect.signature(type(encoder).__init__).parameters:
            # No head reads the pooler, and distributed training waits for the gradient of every parameter.
            encoder.pooler = None
        # One object, so that resizing embeddings or setting an attention implementation changes both configurations.
        self.config.encoder = encoder.config
        setattr(self, self.base_model_prefix, encoder)
        accepted = inspect.signature(encoder.forward).parameters
        self.takes_token_types = "token_type_ids" in accepted and getattr(encoder.config, "type_vocab_size", 0) > 1
        self._takes = {name for name in ("position_ids", "inputs_embeds", "head_mask") if name in accepted}
        # Maximum number of tokens without position_ids; None if the encoder has no position table.
        self.max_length = position_limit(encoder)

    def encode(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        position_ids: Tensor | None,
        output_attentions: bool | None,
        output_hidden_states: bool | None,
        *,
        inputs_embeds: Tensor | None = None,
        head_mask: Tensor | None = None,
    ) -> tuple[BaseModelOutput, Tensor | None]:
        """Checks the inputs, which are those of `QueryAttentionForQuestionAnswering.forward`, and runs the encoder.

        Returns the output of the encoder; and the attention mask as booleans (B, L), or None if `key_mask` finds no
        padding.
        """
        config = self.config.encoder
        given = {"position_ids": position_ids, "inputs_embeds": inputs_embeds, "head_mask": head_mask}
        given = {name: x for name, x in given.items() if x is not None}
        for name in given:
            if name not in self._takes:
                hint = ". An encoder of type 'plain_bert' accepts it, and loads checkpoints of BERT."
                kind = f"{type(self.base_model).__name__} of type {config.model_type!r}"
                raise ValueError(f"{name}: expected None for {kind}, got a tensor{hint if name == 'head_mask' else ''}")
        width = self.get_input_embeddings().embedding_dim
        field = "hidden_size" if width == config.hidden_size else "embedding_size"
        name, tokens = checked_tokens(input_ids, inputs_embeds, config.vocab_size, width, field)
        shape = (tokens.shape[0], tokens.shape[1])
        if token_type_ids is not None:
            kinds = (config.type_vocab_size, "type_vocab_size") if self.takes_token_types else (2, "number of segments")
            check_ids("token_type_ids", token_type_ids, shape, *kinds)
        if position_ids is None and self.max_length is not None and shape[1] > self.max_length:
            raise ValueError(
                f"{name}: expected at most {self.max_length} tokens, as many as the encoder has positions "
                f"(max_position_embeddings is {config.max_position_embeddings}), got sequences of {shape[1]}. "
                "Shorten the sequences."
            )
        if position_ids is not None and config.max_position_embeddings is not None:
            check_position_ids(position_ids, shape, config.max_position_embeddings)
        visible = key_mask(attention_mask, shape)
        output_attentions = requested(output_attentions, self.config.output_attentions)
        output_hidden_states = requested(output_hidden_states, self.config.output_hidden_states)
        inputs = {"attention_mask": attention_mask, **given}
        if self.takes_token_types:
            inputs["token_type_ids"] = token_type_ids
        encoded = self.base_model(
            input_ids,
            **inputs,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        if output_attentions and not encoded.attentions:
            raise ValueError(
                f"output_attentions: expected False with the encoder's attn_implementation "
                f"{self.config.encoder._attn_implementation!r}, which returns no attention matrices, got True. "
                "Call model.set_attn_implementation('eager')."
            )
        return encoded, visible


def position_limit(encoder: nn.Module) -> int | None:
    """Returns the number of positions of an encoder; None if it has no position table.

    The position table is the embedding with a name that ends in "position_embeddings". If it has a padding_idx, as in
    the RoBERTa family, rows 0 to padding_idx are not positions.
    """
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return None

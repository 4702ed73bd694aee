"""What models with a head over any encoder share: the encoder, its inputs checked, and building from a trained one."""

from __future__ import annotations

import copy
import inspect
from typing import Any

from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from qacg_models.checkpoints.head_loading import HeadCheckpointLoading
from qacg_models.configs.encoder_head import EncoderHeadConfig
from qacg_models.models.model_card import CardWriting
from qacg_models.modules.input_checks import check_embeds, check_ids, key_mask


class EncoderHeadModel(CardWriting, HeadCheckpointLoading, PreTrainedModel):
    """A transformers model whose encoder is the attribute that `base_model_prefix` names.

    The encoder is any text encoder that AutoModel knows and whose output has `last_hidden_state`: transformers'
    own, or one of this package.
    """

    config: EncoderHeadConfig
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    @classmethod
    def from_encoder(cls, encoder: PreTrainedModel, config: EncoderHeadConfig | None = None) -> EncoderHeadModel:
        """A model with fresh head weights over `encoder`, which becomes part of it, weights and choices
        included, and loses a pooler that its class can do without.

        Args:
            encoder: such as AutoModel.from_pretrained(folder).
            config: of the head; its field `encoder` is replaced by the encoder's own. None: the defaults.

        Raises:
            TypeError: `encoder` is not a transformers model, or `config` is one of another class.
        """
        if not isinstance(encoder, PreTrainedModel):
            raise TypeError(f"encoder: got {type(encoder).__name__}, wanted a transformers PreTrainedModel")
        if config is not None and not isinstance(config, cls.config_class):
            raise TypeError(f"config: got {type(config).__name__}, wanted {cls.config_class.__name__}")
        config = cls.config_class(encoder=encoder.config) if config is None else copy.deepcopy(config)
        config.encoder = encoder.config
        return cls(config, encoder).to(encoder.dtype).to(encoder.device).train(encoder.training)

    def _set_encoder(self, encoder: PreTrainedModel | None) -> None:
        """Puts the encoder in its place, without a pooler where its class can do without."""
        self.config.check()
        if encoder is None:
            encoder = AutoModel.from_config(self.config.encoder)
        if "add_pooling_layer" in inspect.signature(type(encoder).__init__).parameters:
            # Nothing here reads it, and distributed training waits for the gradient of every parameter.
            encoder.pooler = None
        # One object, so that resized embeddings and a chosen implementation are seen by both.
        self.config.encoder = encoder.config
        setattr(self, self.base_model_prefix, encoder)
        accepted = inspect.signature(encoder.forward).parameters
        self.takes_token_types = "token_type_ids" in accepted and getattr(encoder.config, "type_vocab_size", 0) > 1
        self._takes = {name for name in ("position_ids", "inputs_embeds", "head_mask") if name in accepted}
        self._position_limit = position_limit(encoder)

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        # Transformers would look in the source file for a call of its own dispatcher.
        return True

    def get_input_embeddings(self) -> nn.Embedding:
        return self.base_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.base_model.set_input_embeddings(value)

    @property
    def max_length(self) -> int | None:
        """The longest input in tokens that the encoder has positions for; None: it sets no limit."""
        return self._position_limit

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
        """The encoder's output, and the attention mask as booleans (B, L) or None where all tokens are read.

        Token types go to the encoder if it has more than one; a head may use them either way.

        Raises:
            TypeError, ValueError: naming the argument, what came and what was wanted. Values are looked at on
                the CPU and outside torch.compile only.
        """
        config = self.config.encoder
        given = {"position_ids": position_ids, "inputs_embeds": inputs_embeds, "head_mask": head_mask}
        given = {name: x for name, x in given.items() if x is not None}
        for name in given:
            if name not in self._takes:
                hint = "; an encoder of type 'plain_bert' takes one, and reads BERT's checkpoints"
                kind = f"{type(self.base_model).__name__} of type {config.model_type!r}"
                raise ValueError(f"{name}: {kind} takes none, wanted None{hint if name == 'head_mask' else ''}")
        name, shape = self._check_tokens(input_ids, inputs_embeds)
        if token_type_ids is not None:
            kinds = config.type_vocab_size if self.takes_token_types else 2
            check_ids("token_type_ids", token_type_ids, shape, kinds, "type_vocab_size")
        if position_ids is None and self._position_limit is not None and shape[1] > self._position_limit:
            raise ValueError(
                f"{name}: got sequences of {shape[1]} tokens, wanted at most {self._position_limit}, the positions "
                f"of the encoder (max_position_embeddings is {config.max_position_embeddings})"
            )
        if position_ids is not None and config.max_position_embeddings is not None:
            one_for_all = isinstance(position_ids, Tensor) and position_ids.shape[:1] == (1,)
            rows, limit = (1 if one_for_all else shape[0], shape[1]), config.max_position_embeddings
            check_ids("position_ids", position_ids, rows, limit, "max_position_embeddings")
        visible = key_mask(attention_mask, (shape[0], shape[1]))
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        inputs = {"attention_mask": attention_mask, **given}
        if self.takes_token_types:
            inputs["token_type_ids"] = token_type_ids
        encoded = self.base_model(
            input_ids,
            **inputs,
            output_attentions=bool(output_attentions),
            output_hidden_states=bool(output_hidden_states),
            return_dict=True,
        )
        if output_attentions and not encoded.attentions:
            raise ValueError(
                f"output_attentions: the encoder gave no maps with attn_implementation "
                f"{self.config.encoder._attn_implementation!r}; model.set_attn_implementation('eager') gives them"
            )
        return encoded, visible

    def _check_tokens(self, input_ids: Any, inputs_embeds: Any) -> tuple[str, tuple[int, int]]:
        """What the tokens are given as, and (B, L); an error unless they fit the encoder."""
        if inputs_embeds is None:
            name, tokens = "input_ids", input_ids
            check_ids(name, tokens, None, self.config.encoder.vocab_size, "vocab_size")
        else:
            name, tokens = "inputs_embeds", inputs_embeds
            if input_ids is not None:
                raise ValueError("input_ids, inputs_embeds: got both, wanted exactly one")
            width = self.get_input_embeddings().embedding_dim
            same = width == self.config.encoder.hidden_size
            check_embeds(tokens, width, "hidden_size" if same else "embedding_size")
        if tokens.shape[1] < 1:
            raise ValueError(f"{name}: got shape {tuple(tokens.shape)}, wanted at least one token per sequence")
        return name, (tokens.shape[0], tokens.shape[1])

    def as_dict(self, return_dict: bool | None) -> bool:
        """Whether a forward returns its output object: what the call says, or the configuration."""
        return bool(self.config.return_dict if return_dict is None else return_dict)


def position_limit(encoder: nn.Module) -> int | None:
    """How many tokens an encoder's table of positions has room for; None where it has no such table.

    In encoders of the RoBERTa family positions start after the index of padding.
    """
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return None

"""The base class of every model here: choice of implementation, and initial weights."""

from typing import ClassVar

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from qacg_kernels.nn import GATE_STD, GateLayer
from qacg_models.checkpoints.loading import CheckpointLoading
from qacg_models.models.model_card import CardWriting
from qacg_models.modules.dropout import Dropout


class EncoderPreTrainedModel(CardWriting, CheckpointLoading, PreTrainedModel):
    """What the models share as transformers models.

    `attn_implementation` is one of `implementations`, the first by default; like every such choice in
    transformers it is made when a model is built or loaded, or by `set_attn_implementation`, and is not saved.
    With `config.output_attentions` set and no choice made it is "eager", as transformers has it; asking one
    call for its maps works with all.
    """

    base_model_prefix = "bert"
    supports_gradient_checkpointing = True
    implementations: ClassVar[tuple[str, ...]]
    # A buffer of old BERT checkpoints that holds 0, 1, 2, ...
    _keys_to_ignore_on_load_unexpected: ClassVar = [r"embeddings\.position_ids$"]

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        # Transformers would look in the source file for a call of its own dispatcher.
        return True

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """Transformers' check of the name, narrowed to what these models have."""
        if requested_attention is None:
            return "eager" if self.config.output_attentions else self.implementations[0]
        if requested_attention not in self.implementations:
            known = ", ".join(map(repr, self.implementations))
            raise ValueError(f"attn_implementation: got {requested_attention!r}, wanted one of {known}")
        return requested_attention

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, GateLayer):
            init.normal_(module.weight, mean=0.0, std=GATE_STD)
        elif isinstance(module, nn.LayerNorm) and self.config.layer_norm_initializer == "normal":
            for parameter in (module.bias, module.weight):
                init.normal_(parameter, mean=0.0, std=self.config.initializer_range)


def as_dict(return_dict: bool | None, config) -> bool:
    """Whether a forward returns its output object: what the call says, or the configuration."""
    return bool(config.return_dict if return_dict is None else return_dict)


def classifier_dropout(config) -> Dropout:
    """The dropout before a classifier."""
    given = config.classifier_dropout
    return Dropout(config.hidden_dropout_prob if given is None else given)

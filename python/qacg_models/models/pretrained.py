"""Base classes of the encoders and of their classifiers."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, initialization as init
from transformers.utils import ModelOutput

from qacg_kernels.attention_layers import GATE_STD, GateLayer
from qacg_models.checkpoints.loading import EncoderCheckpointLoading
from qacg_models.models.model_card import CardWriting
from qacg_models.modules.embeddings import Dropout
from qacg_models.modules.losses import classification_loss


class EncoderPreTrainedModel(CardWriting, EncoderCheckpointLoading, PreTrainedModel):
    """Base of every encoder: attention implementations, initial weights and word embeddings.

    `attn_implementation` is one of `implementations`. The default is the first of them, or "eager" if
    `config.output_attentions` is True. As in transformers, the implementation is set when a model is built or loaded,
    or by `set_attn_implementation`, and is not saved. A call with `output_attentions=True` works with every
    implementation.
    """

    base_model_prefix = "bert"
    supports_gradient_checkpointing = True
    implementations: ClassVar[tuple[str, ...]]
    # A buffer of old BERT checkpoints with the values 0, 1, 2, ...
    _keys_to_ignore_on_load_unexpected: ClassVar = [r"embeddings\.position_ids$"]

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        # By default transformers searches the source file for its own attention dispatcher, which is not used here.
        return True

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """Returns the requested name, or the default for None; raises ValueError if unknown."""
        if requested_attention is None:
            return "eager" if self.config.output_attentions else self.implementations[0]
        if requested_attention not in self.implementations:
            known = ", ".join(map(repr, self.implementations))
            raise ValueError(f"attn_implementation: expected one of {known}, got {requested_attention!r}")
        return requested_attention

    def get_input_embeddings(self) -> nn.Embedding:
        return self.base_model.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.base_model.embeddings.word_embeddings = value

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, GateLayer):
            init.normal_(module.weight, mean=0.0, std=GATE_STD)
        elif isinstance(module, nn.LayerNorm) and self.config.layer_norm_initializer == "normal":
            for parameter in (module.bias, module.weight):
                init.normal_(parameter, mean=0.0, std=self.config.initializer_range)


class SequenceClassifier(EncoderPreTrainedModel):
    """A linear classifier on the pooled output of an encoder.

    Attributes:
        encoder_class: class of the encoder.
        output_class: class of the output of `forward`, with the fields `loss`, `logits` and the optional fields of the
            encoder's output.
    """

    card_task = "text-classification"
    encoder_class: ClassVar[type[EncoderPreTrainedModel]]
    output_class: ClassVar[type[ModelOutput]]

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.bert = self.encoder_class(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def _classify(
        self, labels: Tensor | None, output_hidden_states: bool | None, return_dict: bool | None, **inputs
    ) -> ModelOutput | tuple[Tensor, ...]:
        """Runs encoder, dropout and classifier on `inputs`; computes the loss if labels are given."""
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        encoded = self.bert(
            **inputs, pooled_only=not output_hidden_states, output_hidden_states=output_hidden_states, return_dict=True
        )
        logits = self.classifier(self.dropout(encoded.pooler_output))
        output = self.output_class(
            loss=None if labels is None else classification_loss(logits, labels, self.config.problem_type),
            logits=logits,
            **{name: value for name, value in encoded.items() if name not in ("last_hidden_state", "pooler_output")},
        )
        return output if as_dict(return_dict, self.config) else output.to_tuple()


def as_dict(return_dict: bool | None, config) -> bool:
    """Returns `return_dict` as a bool; None: `config.return_dict`.

    True means that `forward` returns its output object, False that it returns a tuple.
    """
    return bool(config.return_dict if return_dict is None else return_dict)


def classifier_dropout(config) -> Dropout:
    """Returns the dropout module before a classifier."""
    return Dropout(config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout)

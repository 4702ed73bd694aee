"""Base classes of the models: the encoders, their classifiers, and the model card that is saved with a model."""

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, initialization as init
from transformers.utils import ModelOutput

from qacg_kernels.attention_layers import GATE_STD, GateLayer
from qacg_models.checkpoints.loading import EncoderCheckpointLoading
from qacg_models.layers.embeddings import Dropout
from qacg_models.layers.losses import classification_loss
from qacg_models.utils.files import follow_umask

CARD_NAME = "README.md"
# Fields of a configuration that the table of the card leaves out.
_NOT_OF_THE_MODEL = (
    *("encoder", "architectures", "transformers_version", "model_type", "dtype", "use_cache", "task_specific_params"),
)
ASPECT_SENTIMENT = "aspect-sentiment"  # the task of the pipeline in `sentiment/pipeline.py`
_NOTHING_KNOWN = (
    "The training data and the metrics of this model are unknown. Before publishing it, add both here, with the\n"
    "licence."
)
_Model: Any = PreTrainedModel if TYPE_CHECKING else object  # of a mixin that precedes PreTrainedModel


class CardWriting(_Model):
    """Mixin whose `save_pretrained` writes a model card if the folder has none.

    List it before PreTrainedModel among the base classes.
    """

    card_task: ClassVar[str]  # the `pipeline_tag` of the hub

    def model_card(self, usage: str | None = None, known: str | None = None, task: str | None = None) -> str:
        """Returns the text of the card, in the format of the Hugging Face hub.

        Args:
            usage: code that loads the model and predicts; None: code that loads the model.
            known: Markdown about training and metrics; None: a sentence that states that both are unknown.
            task: the `pipeline_tag`; None: the `card_task` of the class.
        """
        name, config = type(self).__name__, self.config
        changed = {
            field: json.dumps(value, ensure_ascii=False).replace("|", "\\|")
            for field, value in json.loads(config.to_json_string()).items()
            if field not in _NOT_OF_THE_MODEL
        }
        fields = "\n".join(f"| `{field}` | `{value}` |" for field, value in sorted(changed.items()))
        usage = usage or f"from qacg_models import {name}\n\nmodel = {name}.from_pretrained(FOLDER)\n"
        sizes: Any = getattr(config, "encoder", config)
        return f"""---
library_name: transformers
pipeline_tag: {task or self.card_task}
tags:
- {config.model_type}
---

# {name}

{(type(self).__doc__ or "").strip().splitlines()[0]}

{self.num_parameters():,} parameters, {sizes.hidden_size} hidden units, a vocabulary of {sizes.vocab_size:,}.

{textwrap.indent(usage, "    ")}
{known or _NOTHING_KNOWN}

| field | value |
|---|---|
{fields}
"""

    def save_pretrained(self, save_directory: Path | str, is_main_process: bool = True, **kwargs) -> None:
        """Saves the model, and writes a model card unless the folder has a README.md.

        Weight files get the permissions that the umask allows for new files.

        Args:
            save_directory: the folder, which is created if it does not exist.
            is_main_process: False: only transformers' method runs; this method writes no card and changes no
                permissions.
            **kwargs: further arguments of transformers' `save_pretrained`.
        """
        folder = Path(save_directory)
        # The card is written first, so that push_to_hub uploads it. If the path is a file, transformers logs an error.
        if is_main_process and not folder.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / CARD_NAME).exists():
                (folder / CARD_NAME).write_text(self.model_card(), encoding="utf-8")
        super().save_pretrained(save_directory, is_main_process=is_main_process, **kwargs)
        if is_main_process:
            follow_umask(folder.glob("model*.safetensors"))


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

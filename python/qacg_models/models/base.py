"""What all models share: losses, model cards, base classes of encoders and classifiers."""

import json
import textwrap
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel, initialization as init
from transformers.utils import ModelOutput

from qacg_kernels.attention_layers import GATE_STD, GateLayer
from qacg_models.checkpoints.loading import EncoderCheckpointLoading
from qacg_models.layers.attention import IMPLEMENTATIONS
from qacg_models.layers.batch import EncoderBatch, check_ids, read_batch
from qacg_models.layers.embeddings import Dropout
from qacg_models.utils.files import follow_umask

IGNORED = -100  # label of a row that a loss leaves out


def classification_loss(logits: Tensor, labels: Tensor, problem_type: str | None) -> Tensor:
    """Returns the mean cross-entropy of a sequence classifier with logits (B, C); 0 if every row is left out.

    Labels are (B) int64 or int32 from 0 to C - 1, or -100 for rows that the loss leaves out. Values are checked on the
    CPU and outside torch.compile only.
    """
    if problem_type not in (None, "single_label_classification"):
        raise ValueError(
            f"problem_type: expected 'single_label_classification' or None, got {problem_type!r}. Compute such a loss "
            "from the logits."
        )
    batch, classes = logits.shape
    if classes == 1:
        raise ValueError("num_labels: expected at least 2 for a loss, got 1. Compute such a loss from the logits.")
    check_ids("labels", labels, (batch,), classes, "num_labels", other=(IGNORED, "rows to leave out"))
    return mean_cross_entropy(logits, labels.long())


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the mean cross-entropy of the rows (B, C) with a label (B) other than -100; 0 without any."""
    total = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return total / (labels != IGNORED).sum().clamp_min(1)


CARD_NAME = "README.md"
# Fields of a configuration that the table of the card leaves out.
_NOT_OF_THE_MODEL = {"encoder", "architectures", "transformers_version", "model_type", "dtype", "use_cache"}
ASPECT_SENTIMENT = "aspect-sentiment"  # the task of the pipeline in `sentiment/pipeline.py`
_NOTHING_KNOWN = (
    "The training data and the metrics of this model are unknown. Before publishing it, add both here, with the\n"
    "licence."
)


class CommonModel(PreTrainedModel):
    """Base of all models, with the model card of `save_pretrained`."""

    card_task: ClassVar[str]  # the `pipeline_tag` of the hub

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        # By default transformers searches the source file for its own attention dispatcher, which is not used here.
        return True

    def model_card(self, usage: str | None = None, known: str | None = None, task: str | None = None) -> str:
        """Returns the text of the card, in the format of the Hugging Face hub.

        `usage` is code that loads the model, `known` Markdown about training and metrics, and `task` the
        `pipeline_tag`, by default `card_task`.
        """
        name, config = type(self).__name__, self.config
        changed = {
            field: json.dumps(value, ensure_ascii=False).replace("|", "\\|")
            for field, value in json.loads(config.to_json_string()).items()
            if field not in _NOT_OF_THE_MODEL | {"task_specific_params"}
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

        Weight files get the permissions that the umask allows for new files. With is_main_process=False, this method
        writes no card and changes no permissions. Further arguments are those of transformers' `save_pretrained`.
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


class EncoderPreTrainedModel(EncoderCheckpointLoading, CommonModel):
    """Base of every encoder: attention implementations, initial weights and word embeddings.

    `attn_implementation` is one of `implementations`, by default the first, or "eager" if `config.output_attentions` is
    True. A call with `output_attentions=True` works with every implementation.
    """

    base_model_prefix = "bert"
    supports_gradient_checkpointing = True
    implementations: ClassVar[tuple[str, ...]] = IMPLEMENTATIONS
    _no_split_modules = ("BertEmbeddings", "BertLayer", "ContextBertLayer")
    _input_embed_layer = "word_embeddings"
    # A buffer of old BERT checkpoints with the values 0, 1, 2, ...
    _keys_to_ignore_on_load_unexpected: ClassVar = [r"embeddings\.position_ids$"]

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """Returns the requested name, or the default for None; raises ValueError if unknown."""
        if requested_attention is None:
            return "eager" if self.config.output_attentions else self.implementations[0]
        if requested_attention not in self.implementations:
            known = ", ".join(map(repr, self.implementations))
            raise ValueError(f"attn_implementation: expected one of {known}, got {requested_attention!r}")
        return requested_attention

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, GateLayer):
            init.normal_(module.weight, mean=0.0, std=GATE_STD)
        elif isinstance(module, nn.LayerNorm) and self.config.layer_norm_initializer == "normal":
            for parameter in (module.bias, module.weight):
                init.normal_(parameter, mean=0.0, std=self.config.initializer_range)


class EncoderModel(EncoderPreTrainedModel):
    """Base of the encoders without a head, with the attributes `embeddings`, `encoder` and `pooler`."""

    card_task = "feature-extraction"
    output_class: ClassVar[type[ModelOutput]]  # has the fields of transformers' BaseModelOutputWithPooling

    def _embedded(self, *inputs, output_attentions: bool, pools: bool = True) -> tuple[EncoderBatch, Tensor]:
        """Returns the batch that `read_batch` makes of `inputs`, and its embeddings."""
        # Without a pooler the caller reads the hidden states, including those of padding.
        unpad = self.config.unpad and pools and not output_attentions
        batch = read_batch(self.config, *inputs, leave_out_padding=unpad, may_round=not output_attentions)
        return batch, self.embeddings(batch.input_ids, batch.token_type_ids, batch.position_ids, batch.inputs_embeds)

    def _output(
        self,
        batch: EncoderBatch,
        every_hidden: list[Tensor],
        pooler: nn.Module | None,
        pooled_only: bool,
        output_hidden_states: bool,
        first_only: bool,
        **maps: tuple[Tensor, ...] | None,
    ) -> ModelOutput:
        """Returns the output of `forward` from the states of all layers, in the form of the caller's batch."""
        return self.output_class(
            last_hidden_state=None if pooled_only else batch.restored(every_hidden[-1]),
            pooler_output=None if pooler is None else batch.pooled(pooler, every_hidden[-1], first_only),
            hidden_states=tuple(map(batch.restored, every_hidden)) if output_hidden_states else None,
            **maps,
        )


class SequenceClassifier(EncoderPreTrainedModel):
    """A linear classifier on the pooled output of an encoder."""

    card_task = "text-classification"
    encoder_class: ClassVar[type[EncoderPreTrainedModel]]
    output_class: ClassVar[type[ModelOutput]]  # has `loss`, `logits` and the optional fields of the encoder's output

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.bert = self.encoder_class(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def _classify(self, labels: Tensor | None, output_hidden_states: bool | None, *inputs, **options) -> ModelOutput:
        """Runs encoder, dropout and classifier on `inputs`; computes the loss if labels are given."""
        every = requested(output_hidden_states, self.config.output_hidden_states)
        encoded = self.bert(*inputs, **options, pooled_only=not every, output_hidden_states=every, return_dict=True)
        logits = self.classifier(self.dropout(encoded.pooler_output))
        return self.output_class(
            loss=None if labels is None else classification_loss(logits, labels, self.config.problem_type),
            logits=logits,
            **{name: value for name, value in encoded.items() if name not in ("last_hidden_state", "pooler_output")},
        )


def requested(value: bool | None, default: bool) -> bool:
    """Returns the value of an argument that selects outputs; None: that of the configuration."""
    return bool(default if value is None else value)


def classifier_dropout(config) -> Dropout:
    """Returns the dropout module before a classifier."""
    return Dropout(config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout)

"""The model card that is saved with a model: sizes, configuration and code to load it."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transformers import PreTrainedModel

from qacg_models.utils.atomic_files import follow_umask

CARD_NAME = "README.md"
# Fields of a configuration that the table of the card leaves out.
_NOT_OF_THE_MODEL = (
    *("encoder", "architectures", "transformers_version", "model_type", "dtype", "use_cache", "task_specific_params"),
)
# Name of the task of the pipeline in `inference/aspect_pipeline.py`.
ASPECT_SENTIMENT = "aspect-sentiment"

_NOTHING_KNOWN = (
    "The training data and the metrics of this model are unknown. Before publishing it, add both here, with the\n"
    "licence."
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel as _Model
else:  # a mixin that precedes PreTrainedModel
    _Model = object


class CardWriting(_Model):
    """Mixin whose `save_pretrained` writes a model card if the folder has none.

    List it before PreTrainedModel among the base classes.
    """

    card_task: ClassVar[str]  # the `pipeline_tag` of the hub

    def model_card(self, usage: str | None = None, known: str | None = None, task: str | None = None) -> str:
        """Returns the text of the card, in the format of the Hugging Face hub.

        Args:
            usage: code that loads the model and predicts; None: generated code, which predicts only for a classifier.
            known: Markdown about training and metrics; None: a sentence that states that both are unknown.
            task: the `pipeline_tag`; None: the `card_task` of the class.
        """
        name, config = type(self).__name__, self.config
        changed = {
            field: value
            for field, value in json.loads(config.to_json_string()).items()
            if field not in _NOT_OF_THE_MODEL
        }
        fields = "\n".join(f"| `{field}` | {_cell(value)} |" for field, value in sorted(changed.items()))
        return f"""---
library_name: transformers
pipeline_tag: {task or self.card_task}
tags:
- {config.model_type}
---

# {name}

{(type(self).__doc__ or "").strip().splitlines()[0]}

{self.num_parameters():,} parameters, {_size(self)}.

{textwrap.indent(usage or self._usage(), "    ")}
{known or _NOTHING_KNOWN}

| field | value |
|---|---|
{fields}
"""

    def _usage(self) -> str:
        name, contexts = type(self).__name__, getattr(self.config, "contexts", None)
        if self.card_task not in ("text-classification", ASPECT_SENTIMENT):
            return f"from qacg_models import {name}\n\nmodel = {name}.from_pretrained(FOLDER)\n"
        asked, ids = ("sentence", "") if contexts is None else ("sentence, context", ", context_ids=context_ids")
        lines = [
            "import torch",
            "from transformers import AutoTokenizer",
            f"from qacg_models import {name}",
            "",
            "tokenizer = AutoTokenizer.from_pretrained(FOLDER)",
            f"model = {name}.from_pretrained(FOLDER)",
            'sentence = "the bill was a shock"',
        ]
        if contexts is not None:
            lines += [
                f"context = {contexts[0]!r}  # one of model.config.contexts",
                "context_ids = torch.tensor([model.config.context_id(context)])",
            ]
            if self.config.context_standalone:
                asked = "sentence"
        lines += [
            f'batch = tokenizer({asked}, return_tensors="pt")',
            "with torch.no_grad():",
            f"    shares = model(**batch{ids}).logits[0].softmax(-1)",
            "print(model.config.id2label[int(shares.argmax())], shares.tolist())",
        ]
        return "\n".join(lines) + "\n"

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


def _size(model: PreTrainedModel) -> str:
    encoder = getattr(model.config, "encoder", None)
    if encoder is not None:
        return (
            f"over an encoder of type `{encoder.model_type}` with {encoder.hidden_size} hidden units and a vocabulary "
            f"of {encoder.vocab_size:,}"
        )
    config = model.config
    return (
        f"{config.num_hidden_layers} layers with {config.hidden_size} hidden units and {config.num_attention_heads} "
        f"heads, a vocabulary of {config.vocab_size:,}"
    )


def _cell(value: object) -> str:
    """Returns a value as Markdown code for a table cell, with each `|` escaped."""
    return f"`{json.dumps(value, ensure_ascii=False)}`".replace("|", "\\|")

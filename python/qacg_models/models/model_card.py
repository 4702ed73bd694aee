"""A model card for the hub: what a saved model is and how to load it, and that nothing else is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transformers import PreTrainedModel

from qacg_models.utils.atomic_files import follow_umask

CARD_NAME = "README.md"
# What a configuration says about itself and not about the model.
_NOT_OF_THE_MODEL = ("encoder", "architectures", "transformers_version", "model_type", "dtype")

if TYPE_CHECKING:
    from transformers import PreTrainedModel as _Model
else:  # it is mixed in before the model
    _Model = object


class CardWriting(_Model):
    """Mixed into a PreTrainedModel before it: saving writes a model card where the folder has none."""

    card_task: ClassVar[str]  # the hub's name for what the model does

    def model_card(self) -> str:
        """Text of the card, in the hub's format."""
        name, config = type(self).__name__, self.config
        changed = {
            field: value
            for field, value in json.loads(config.to_json_string()).items()
            if field not in _NOT_OF_THE_MODEL
        }
        fields = "\n".join(f"| `{field}` | {_cell(value)} |" for field, value in sorted(changed.items()))
        return f"""---
library_name: transformers
pipeline_tag: {self.card_task}
tags:
- {config.model_type}
---

# {name}

{(type(self).__doc__ or "").strip().splitlines()[0]}

{self.num_parameters():,} parameters, {_size(self)}.

    from qacg_models import {name}

    model = {name}.from_pretrained(FOLDER)

| field | value |
|---|---|
{fields}

Saving a model does not tell on what it was trained, nor how well it does. Whoever publishes it should add both here,
with the licence.
"""

    def save_pretrained(self, save_directory: Path | str, is_main_process: bool = True, **kwargs) -> None:
        """As in transformers, with a model card; one that is there is kept, since its owner may have edited it."""
        folder = Path(save_directory)
        # First, so that an upload has it; a path that is a file is transformers' to refuse.
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
    """A value as code in a cell of a table, where a bar would begin the next cell."""
    return f"`{json.dumps(value, ensure_ascii=False)}`".replace("|", "\\|")

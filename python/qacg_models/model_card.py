"""A model card for the hub: what a saved model is and how to load it, and that nothing else is known."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import PreTrainedModel

CARD_NAME = "README.md"


def model_card(model: PreTrainedModel) -> str:
    """Text of the card, in the hub's format.

    Args:
        model: whose class has `card_task`, a task of the hub, and a docstring with a first line.
    """
    name, kind = type(model).__name__, model.config.model_type
    changed = {
        field: value
        for field, value in json.loads(model.config.to_json_string()).items()
        if field not in ("encoder", "architectures", "transformers_version", "model_type", "dtype")
    }
    fields = "\n".join(f"| `{field}` | `{json.dumps(value)}` |" for field, value in sorted(changed.items()))
    encoder = model.config.encoder
    return f"""---
library_name: transformers
pipeline_tag: {model.card_task}
tags:
- {kind}
---

# {name}

{(type(model).__doc__ or "").strip().splitlines()[0]}

{model.num_parameters():,} parameters, over an encoder of type `{encoder.model_type}` with {encoder.hidden_size}
hidden units and a vocabulary of {encoder.vocab_size:,}.

    from qacg_models import {name}

    model = {name}.from_pretrained(FOLDER)

| field | value |
|---|---|
{fields}

The program that saved this model does not know on what it was trained, nor how well it does. Whoever publishes it
should add both here, with the licence.
"""


def write_card(folder: Path | str, model: PreTrainedModel) -> None:
    """Writes the card into `folder`, which is made; one that is there is kept, since its owner may have edited it."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / CARD_NAME).exists():
        (folder / CARD_NAME).write_text(model_card(model), encoding="utf-8")

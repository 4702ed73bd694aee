"""The backbones of the application by the names that commands and saved files have for them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qacg_models.pretrained import EncoderPreTrainedModel

TITLES = {"qacg-bert": "QACG-BERT", "cg-bert": "CG-BERT", "bert": "BERT"}
_CLASSES = {
    "qacg-bert": ("qacg_bert", "QACGBertForSequenceClassification"),
    "cg-bert": ("cg_bert", "CGBertForSequenceClassification"),
    "bert": ("bert", "BertForSequenceClassification"),
}


def model_class(name: str) -> type[EncoderPreTrainedModel]:
    """The classifier of a backbone; importing it takes seconds."""
    module, attribute = _CLASSES[name]
    return getattr(importlib.import_module(f"qacg_models.{module}"), attribute)


def has_contexts(name: str) -> bool:
    """Whether the backbone is told the aspect by a context id."""
    return name != "bert"

"""The table of models, and their registration with the Auto classes of transformers.

Importing this module does not import the models.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class ModelEntry:
    """An entry of the table of models.

    Attributes:
        name: name of the model's class, as in `architectures` of config.json.
        module: module of the class.
        model_type: `model_type` in config.json.
        auto_class: name of transformers' Auto class for the model.
        tensors: "bert" if checkpoints have BERT's tensor names, "head" for a head over any encoder.
        contexts: whether the model receives the aspect as a context id.
        context_from_layer: whether the configuration has this field (`ContextFromLayerConfig`).
        context_projection: whether the configuration has this field (`GatedContextConfig`).
        quasi_attention: whether the configuration has the fields that `QACGBertConfig` adds, such as quasi_scale.
        backbone: name of the model in commands and saved files; None if `qacg train` does not train it.
        title: name of the model in tables of results; None if `backbone` is None.
    """

    name: str
    module: str
    model_type: str
    auto_class: str = "AutoModel"
    tensors: str = "bert"
    contexts: bool = False
    context_from_layer: bool = False
    context_projection: bool = False
    quasi_attention: bool = False
    backbone: str | None = None
    title: str | None = None

    @property
    def adds_context(self) -> bool:
        """Whether the model only adds the context embedding to hidden states, as Aspect-BERT does."""
        return self.context_from_layer and not self.context_projection

    @property
    def starts_from_names(self) -> bool:
        """Whether training can initialise the context embeddings from the names of the contexts."""
        return self.quasi_attention or self.adds_context


def _classifier(encoder: ModelEntry, name: str, backbone: str, title: str) -> ModelEntry:
    auto_class = "AutoModelForSequenceClassification"
    return replace(encoder, name=name, auto_class=auto_class, backbone=backbone, title=title)


_QACG_BERT = ModelEntry(
    "QACGBertModel",
    "qacg_models.models.qacg_bert",
    "qacg_bert",
    contexts=True,
    context_from_layer=True,
    context_projection=True,
    quasi_attention=True,
)
_CG_BERT = replace(
    _QACG_BERT, name="CGBertModel", module="qacg_models.models.cg_bert", model_type="cg_bert", quasi_attention=False
)
_ASPECT_BERT = replace(
    _CG_BERT,
    name="AspectBertModel",
    module="qacg_models.models.aspect_bert",
    model_type="aspect_bert",
    context_projection=False,
)
_BERT = ModelEntry("BertModel", "qacg_models.models.bert", "plain_bert")
_BERTSUM = ("BertSumForExtractiveSummarization", "qacg_models.models.bertsum", "bertsum", "AutoModel")
_QUERY_ATTENTION = ("QueryAttentionForQuestionAnswering", "qacg_models.models.query_attention", "query_attention")
_ANSWERS = "AutoModelForQuestionAnswering"

# Help texts list the backbones in this order.
MODELS = (
    _QACG_BERT,
    _classifier(_QACG_BERT, "QACGBertForSequenceClassification", "qacg-bert", "QACG-BERT"),
    _CG_BERT,
    _classifier(_CG_BERT, "CGBertForSequenceClassification", "cg-bert", "CG-BERT"),
    _ASPECT_BERT,
    _classifier(_ASPECT_BERT, "AspectBertForSequenceClassification", "aspect-bert", "Aspect-BERT"),
    _BERT,
    _classifier(_BERT, "BertForSequenceClassification", "bert", "BERT"),
    replace(_BERT, name="BertForQuestionAnswering", auto_class=_ANSWERS),
    ModelEntry(*_BERTSUM, tensors="head"),
    ModelEntry(*_QUERY_ATTENTION, _ANSWERS, tensors="head"),
)
BACKBONES = {entry.backbone: entry for entry in MODELS if entry.backbone is not None}


def load_class(entry: ModelEntry) -> type[PreTrainedModel]:
    """Imports a model, which takes seconds, and registers all models; returns its class."""
    register_auto_classes()
    return getattr(importlib.import_module(entry.module), entry.name)


def register_auto_classes() -> None:
    """Registers every model of this package with the Auto classes of transformers.

    A repeated call registers the same classes again, without an error.

    Example:
        >>> from transformers import AutoConfig
        >>> register_auto_classes()
        >>> AutoConfig.for_model("qacg_bert", num_labels=3).num_labels
        3
    """
    import transformers

    for entry in MODELS:
        kind = getattr(importlib.import_module(entry.module), entry.name)
        # exist_ok: reloading a module in a notebook registers its new classes.
        transformers.AutoConfig.register(entry.model_type, kind.config_class, exist_ok=True)
        getattr(transformers, entry.auto_class).register(kind.config_class, kind, exist_ok=True)

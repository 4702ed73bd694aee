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
    def starts_from_names(self) -> bool:
        """Whether training can initialise the context embeddings from the names of the contexts."""
        return self.context_from_layer and (self.quasi_attention or not self.context_projection)


def _encoder(name: str, model_type: str, backbone: str, title: str, **fields) -> tuple[ModelEntry, ModelEntry]:
    """Returns the entries of an encoder and of its sequence classifier, which are in the module of the backbone."""
    module = f"qacg_models.models.{backbone.replace('-', '_')}"
    encoder = ModelEntry(f"{name}Model", module, model_type, **fields)
    auto_class = "AutoModelForSequenceClassification"
    kind = f"{name}ForSequenceClassification"
    return encoder, replace(encoder, name=kind, auto_class=auto_class, backbone=backbone, title=title)


_CONTEXT = {"contexts": True, "context_from_layer": True}
_GATED = _CONTEXT | {"context_projection": True}
_BERTSUM = ("BertSumForExtractiveSummarization", "qacg_models.models.bertsum", "bertsum")
_QUERY_ATTENTION = ("QueryAttentionForQuestionAnswering", "qacg_models.models.query_attention", "query_attention")
_ANSWERS = "AutoModelForQuestionAnswering"

# Help texts list the backbones in this order.
MODELS = (
    *_encoder("QACGBert", "qacg_bert", "qacg-bert", "QACG-BERT", **_GATED, quasi_attention=True),
    *_encoder("CGBert", "cg_bert", "cg-bert", "CG-BERT", **_GATED),
    *_encoder("AspectBert", "aspect_bert", "aspect-bert", "Aspect-BERT", **_CONTEXT),
    *_encoder("Bert", "plain_bert", "bert", "BERT"),
    ModelEntry("BertForQuestionAnswering", "qacg_models.models.bert", "plain_bert", _ANSWERS),
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

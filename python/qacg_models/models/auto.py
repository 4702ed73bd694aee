"""The table of models, and their registration with the Auto classes of transformers.

Importing this module does not import the models.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class ModelEntry:
    """An entry of the table of models.

    Attributes:
        name: name of the model's class, as in `architectures` of config.json.
        module: module of the class.
        configuration: name of the configuration class.
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
    configuration: str
    model_type: str
    auto_class: str
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


_QACG_BERT = ("qacg_models.models.qacg_bert", "QACGBertConfig", "qacg_bert")
_CG_BERT = ("qacg_models.models.cg_bert", "CGBertConfig", "cg_bert")
_ASPECT_BERT = ("qacg_models.models.aspect_bert", "AspectBertConfig", "aspect_bert")
_BERT = ("qacg_models.models.bert", "PlainBertConfig", "plain_bert")
_BERTSUM = ("qacg_models.models.bertsum", "BertSumConfig", "bertsum")
_QUERY_ATTENTION = ("qacg_models.models.query_attention", "QueryAttentionConfig", "query_attention")

# Help texts list the backbones in this order.
MODELS = (
    ModelEntry(
        "QACGBertModel",
        *_QACG_BERT,
        "AutoModel",
        contexts=True,
        context_from_layer=True,
        context_projection=True,
        quasi_attention=True,
    ),
    ModelEntry(
        "QACGBertForSequenceClassification",
        *_QACG_BERT,
        "AutoModelForSequenceClassification",
        contexts=True,
        context_from_layer=True,
        context_projection=True,
        quasi_attention=True,
        backbone="qacg-bert",
        title="QACG-BERT",
    ),
    ModelEntry("CGBertModel", *_CG_BERT, "AutoModel", contexts=True, context_from_layer=True, context_projection=True),
    ModelEntry(
        "CGBertForSequenceClassification",
        *_CG_BERT,
        "AutoModelForSequenceClassification",
        contexts=True,
        context_from_layer=True,
        context_projection=True,
        backbone="cg-bert",
        title="CG-BERT",
    ),
    ModelEntry("AspectBertModel", *_ASPECT_BERT, "AutoModel", contexts=True, context_from_layer=True),
    ModelEntry(
        "AspectBertForSequenceClassification",
        *_ASPECT_BERT,
        "AutoModelForSequenceClassification",
        contexts=True,
        context_from_layer=True,
        backbone="aspect-bert",
        title="Aspect-BERT",
    ),
    ModelEntry("BertModel", *_BERT, "AutoModel"),
    ModelEntry(
        "BertForSequenceClassification",
        *_BERT,
        "AutoModelForSequenceClassification",
        backbone="bert",
        title="BERT",
    ),
    ModelEntry("BertForQuestionAnswering", *_BERT, "AutoModelForQuestionAnswering"),
    ModelEntry("BertSumForExtractiveSummarization", *_BERTSUM, "AutoModel", tensors="head"),
    ModelEntry(
        "QueryAttentionForQuestionAnswering",
        *_QUERY_ATTENTION,
        "AutoModelForQuestionAnswering",
        tensors="head",
    ),
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

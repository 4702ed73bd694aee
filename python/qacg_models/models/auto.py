"""The one table of models: what is known of each without importing it, and how it is made known to transformers.

transformers' AutoModel classes know a model of this package once one of its names has been taken from `qacg_models`:
`qacg_models.BertModel`, say. `register_auto_classes()` registers them all, for programs that only call
`AutoModel.from_pretrained`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class ModelEntry:
    """One model.

    Attributes:
        name: of the class, which `architectures` of a config.json names.
        module: where the class is.
        configuration: name of the class of its configuration.
        model_type: what a config.json calls it.
        auto_class: the class of transformers that makes it.
        tensors: "bert" where its checkpoints have BERT's names of tensors, "head" for a head over any encoder.
        contexts: whether it is told the aspect by a context id.
        context_projection: whether its configuration has this choice (`GatedContextConfig`).
        quasi_attention: whether its configuration has the scalars of quasi-attention (`QACGBertConfig`).
        backbone: what commands and saved files call it; None for a model that `qacg train` does not train.
        title: what tables of results call it.
    """

    name: str
    module: str
    configuration: str
    model_type: str
    auto_class: str
    tensors: str = "bert"
    contexts: bool = False
    context_projection: bool = False
    quasi_attention: bool = False
    backbone: str | None = None
    title: str | None = None


_QACG_BERT = ("qacg_models.models.qacg_bert", "QACGBertConfig", "qacg_bert")
_CG_BERT = ("qacg_models.models.cg_bert", "CGBertConfig", "cg_bert")
_BERT = ("qacg_models.models.bert", "PlainBertConfig", "plain_bert")
_BERTSUM = ("qacg_models.models.bertsum", "BertSumConfig", "bertsum")
_QUERY_ATTENTION = ("qacg_models.models.query_attention", "QueryAttentionConfig", "query_attention")

# Help texts list the backbones in this order.
MODELS = (
    ModelEntry("QACGBertModel", *_QACG_BERT, "AutoModel", contexts=True, context_projection=True, quasi_attention=True),
    ModelEntry(
        "QACGBertForSequenceClassification",
        *_QACG_BERT,
        "AutoModelForSequenceClassification",
        contexts=True,
        context_projection=True,
        quasi_attention=True,
        backbone="qacg-bert",
        title="QACG-BERT",
    ),
    ModelEntry("CGBertModel", *_CG_BERT, "AutoModel", contexts=True, context_projection=True),
    ModelEntry(
        "CGBertForSequenceClassification",
        *_CG_BERT,
        "AutoModelForSequenceClassification",
        contexts=True,
        context_projection=True,
        backbone="cg-bert",
        title="CG-BERT",
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
    """The class of a model, known to transformers; importing it takes seconds."""
    register_with(entry.name)
    return getattr(importlib.import_module(entry.module), entry.name)


def register_with(name: str) -> None:
    """Registers the models of the file that has the class `name`, or whose configuration it is; nothing for others.

    The encoder of a head may be any model of this package, so with a head all are registered.
    """
    meant = [entry for entry in MODELS if name in (entry.name, entry.configuration)]
    if any(entry.tensors == "head" for entry in meant):
        register_auto_classes()
    else:
        modules = {entry.module for entry in meant}
        _register(entry for entry in MODELS if entry.module in modules)


def register_auto_classes() -> None:
    """Makes every model of this package known to AutoConfig, AutoModel and AutoModelFor...; may be repeated."""
    _register(MODELS)


def _register(entries: Iterable[ModelEntry]) -> None:
    for entry in entries:
        import transformers

        kind = getattr(importlib.import_module(entry.module), entry.name)
        # exist_ok: reloading a module in a notebook registers its new classes.
        transformers.AutoConfig.register(entry.model_type, kind.config_class, exist_ok=True)
        getattr(transformers, entry.auto_class).register(kind.config_class, kind, exist_ok=True)

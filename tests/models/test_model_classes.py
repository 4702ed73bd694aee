"""The table of models, auto classes in a new process, docstrings and signatures of the model classes."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest
import qacg_models
import torch
import transformers
from encoders import SIZES
from model_cases import CASES
from processes import run_python
from qacg_models import (
    BertForSequenceClassification,
    BertModel,
    QACGBertForSequenceClassification,
    QACGBertModel,
)
from qacg_models.checkpoints.loading import EncoderCheckpointLoading, HeadCheckpointLoading
from qacg_models.models.auto import BACKBONES, MODELS, load_class


@pytest.mark.parametrize("entry", MODELS, ids=lambda entry: entry.name)
def test_model_table_entry_agrees_with_its_class(entry):
    model = load_class(entry)
    assert model.__name__ == entry.name and getattr(qacg_models, entry.name) is model
    config = model.config_class
    assert config.model_type == entry.model_type and getattr(qacg_models, config.__name__) is config
    assert issubclass(model, {"bert": EncoderCheckpointLoading, "head": HeadCheckpointLoading}[entry.tensors])
    assert hasattr(config(), "contexts") == entry.contexts
    assert hasattr(config(), "context_projection") == entry.context_projection
    assert hasattr(config, "reads") == (entry.tensors == "bert")
    assert (entry.backbone is None) == (entry.title is None)
    assert getattr(transformers, entry.auto_class)._model_mapping[config] is model


def test_model_table_lists_every_public_model_once():
    named = [entry.name for entry in MODELS]
    backbones = [entry.backbone for entry in MODELS if entry.backbone is not None]
    assert len(set(named)) == len(named) and list(BACKBONES) == backbones
    public = (getattr(qacg_models, name) for name in qacg_models.__all__)
    models = {kind for kind in public if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)}
    assert {model.__name__ for model in models} == set(named)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "registered"),
    [
        pytest.param("BertModel", "plain_bert", id="model"),
        pytest.param("QACGBertConfig", "qacg_bert", id="configuration"),
        # The encoder of a head may be any model of this package.
        pytest.param("BertSumForExtractiveSummarization", "cg_bert", id="model with a head"),
        pytest.param("QueryAttentionConfig", "qacg_bert", id="configuration of a head"),
    ],
)
def test_import_of_a_name_registers_auto_classes(name, registered):
    script = (
        f"from qacg_models import {name}; from transformers import AutoConfig, AutoModel; "
        f"AutoModel.from_config(AutoConfig.for_model({registered!r}, hidden_size=8, num_attention_heads=2, "
        "num_hidden_layers=1, intermediate_size=8, vocab_size=9))"
    )
    run_python("-c", script)


LOAD = """
import sys, torch, qacg_models
model = getattr(qacg_models, sys.argv[1]).from_pretrained(sys.argv[2]).eval()
torch.save({name: t for name, t in model.state_dict().items()}, sys.argv[3])
"""


AUTO = """
import sys, transformers, qacg_models
qacg_models.register_auto_classes()
for kind, folder in zip(sys.argv[1::2], sys.argv[2::2]):
    model = transformers.AutoModel.from_pretrained(folder)
    assert type(model).__name__ == kind and type(model).__module__.startswith("qacg_models."), type(model)
"""


@pytest.mark.full
def test_new_process_loads_through_auto_classes(tmp_path):
    arguments = []
    for name in ("BertModel", "CGBertModel", "QACGBertModel", "BertSum"):
        CASES[name].build().save_pretrained(tmp_path / name)
        arguments += [CASES[name].model, tmp_path / name]
    run_python("-c", AUTO, *arguments)


@pytest.mark.full
@pytest.mark.parametrize(
    ("model_class", "config_class", "settings"),
    [
        ("QueryAttentionForQuestionAnswering", "QueryAttentionConfig", {}),
        ("BertSumForExtractiveSummarization", "BertSumConfig", {"heads": 3, "ff_size": 20}),
    ],
)
def test_new_process_loads_the_weights(model_class, config_class, settings, tmp_path):
    torch.manual_seed(0)
    encoder = qacg_models.BertModel(qacg_models.PlainBertConfig(**SIZES)).eval()
    model = getattr(qacg_models, model_class).from_encoder(encoder, getattr(qacg_models, config_class)(**settings))
    model.save_pretrained(tmp_path / "model")
    run_python("-c", LOAD, model_class, tmp_path / "model", tmp_path / "weights")
    loaded = torch.load(tmp_path / "weights", weights_only=True)
    assert set(loaded) == set(model.state_dict())
    for name, t in model.state_dict().items():
        assert torch.equal(t, loaded[name]), name


PAIRS = [(QACGBertModel, BertModel), (QACGBertForSequenceClassification, BertForSequenceClassification)]
DIFFERENT = {"context_ids", "text_ids", "output_lambda", "output_gates", "head_mask", "tokens_only"}


def parameters(model):
    signature = inspect.signature(model.forward)
    return [(p.name, p.kind, p.default, p.annotation) for p in signature.parameters.values() if p.name not in DIFFERENT]


@pytest.mark.parametrize("models", PAIRS, ids=["encoders", "classifiers"])
def test_forwards_have_the_same_arguments(models):
    assert parameters(models[0]) == parameters(models[1])


PACKAGE = Path(qacg_models.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for folder in ("models", "layers")
    for path in (PACKAGE / folder).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_print_what_they_show(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0

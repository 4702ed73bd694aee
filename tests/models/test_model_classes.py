"""The table of models, and the docstrings of the model classes."""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest
import qacg_models
import transformers
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


@pytest.mark.parametrize("entry", MODELS, ids=lambda entry: entry.name)
def test_forward_documents_its_arguments_in_order(entry):
    forward = load_class(entry).forward
    documented = re.findall(r"^    (\w+): ", inspect.getdoc(forward).partition("\nReturns:")[0], re.MULTILINE)
    assert documented == [name for name in inspect.signature(forward).parameters if name != "self"]


def test_model_table_lists_every_public_model_once():
    named = [entry.name for entry in MODELS]
    backbones = [entry.backbone for entry in MODELS if entry.backbone is not None]
    assert len(set(named)) == len(named) and list(BACKBONES) == backbones
    public = (getattr(qacg_models, name) for name in qacg_models.__all__)
    models = {kind for kind in public if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)}
    assert {model.__name__ for model in models} == set(named)


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

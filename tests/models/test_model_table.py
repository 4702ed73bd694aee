"""The table of models agrees with its classes and registers them with transformers."""

import pytest
import qacg_models
import transformers
import warm_python
from qacg_models.checkpoints.head_loading import HeadCheckpointLoading
from qacg_models.checkpoints.loading import CheckpointLoading
from qacg_models.configs.encoders import ENCODER_CONFIGS
from qacg_models.models.auto import BACKBONES, MODELS, load_class


@pytest.mark.parametrize("entry", MODELS, ids=lambda entry: entry.name)
def test_model_table_entry_agrees_with_its_class(entry):
    model = load_class(entry)
    assert model.__name__ == entry.name and getattr(qacg_models, entry.name) is model
    config = getattr(qacg_models, entry.configuration)
    assert model.config_class is config and config.model_type == entry.model_type
    assert issubclass(model, {"bert": CheckpointLoading, "head": HeadCheckpointLoading}[entry.tensors])
    assert hasattr(config(), "contexts") == entry.contexts
    assert hasattr(config(), "context_projection") == entry.context_projection
    assert (entry.model_type in ENCODER_CONFIGS) == (entry.tensors == "bert")
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
    done = warm_python.run("-c", script)
    assert done.returncode == 0, done.stderr[-2000:]

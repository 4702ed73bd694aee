"""Models that another process loads: heads over our own BERT, and auto classes."""

import os
from pathlib import Path

import pytest
import qacg_models
import torch
import warm_python
from encoders import SIZES
from model_cases import CASES

ROOT = Path(__file__).resolve().parents[2]
LOAD = """
import sys, torch, qacg_models
model = getattr(qacg_models, sys.argv[1]).from_pretrained(sys.argv[2]).eval()
torch.save({name: t for name, t in model.state_dict().items()}, sys.argv[3])
"""


def fresh_process(code, *arguments):
    done = warm_python.run("-c", code, *arguments, PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'python'}")
    assert done.returncode == 0, done.stderr[-2000:]


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
    fresh_process(AUTO, *arguments)


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
    fresh_process(LOAD, model_class, tmp_path / "model", tmp_path / "weights")
    loaded = torch.load(tmp_path / "weights", weights_only=True)
    assert set(loaded) == set(model.state_dict())
    for name, t in model.state_dict().items():
        assert torch.equal(t, loaded[name]), name

"""Heads over our own BERT: saved by one process, loaded by a fresh one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import qacg_models
import torch
from encoders import SIZES

ROOT = Path(__file__).resolve().parents[2]
LOAD = """
import sys, torch, qacg_models
model = getattr(qacg_models, sys.argv[1]).from_pretrained(sys.argv[2]).eval()
torch.save({name: t for name, t in model.state_dict().items()}, sys.argv[3])
"""


@pytest.mark.parametrize(
    ("model_class", "config_class", "settings"),
    [
        ("QueryAttentionForQuestionAnswering", "QueryAttentionConfig", {}),
        ("BertSumForExtractiveSummarization", "BertSumConfig", {"heads": 3, "ff_size": 20}),
    ],
)
def test_a_fresh_process_loads_the_weights(model_class, config_class, settings, tmp_path):
    torch.manual_seed(0)
    encoder = qacg_models.BertModel(qacg_models.PlainBertConfig(**SIZES)).eval()
    model = getattr(qacg_models, model_class).from_encoder(encoder, getattr(qacg_models, config_class)(**settings))
    model.save_pretrained(tmp_path / "model")
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'python'}"}
    command = [sys.executable, "-c", LOAD, model_class, str(tmp_path / "model"), str(tmp_path / "weights")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = torch.load(tmp_path / "weights", weights_only=True)
    assert set(loaded) == set(model.state_dict())
    for name, t in model.state_dict().items():
        assert torch.equal(t, loaded[name]), name

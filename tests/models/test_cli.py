"""The commands of qacg: output, exit status, errors, and the run file."""

import argparse
import dataclasses
import io
import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import qacg_models
from commands import fails
from errors import raises
from model_sizes import SMALL_FLAGS
from qacg_models.cli.program import _parser, main
from qacg_models.sentiment.dataset import load_data, sample_directory
from qacg_models.sentiment.options import SIZES as SIZE_OPTIONS, DataOptions, TrainingOptions
from qacg_models.sentiment.trained_model import load_trained
from qacg_models.utils.fields import kind_of
from safetensors.torch import load_file, save_file
from untrained import write_model

import qacg_kernels

SIZES = [*SMALL_FLAGS, "--epochs=2", "--batch-size=16"]


@pytest.fixture(scope="module")
def model(small_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "model"
    assert main(["train", "--data", str(small_data), "--output", str(folder), *SIZES]) == 0
    return folder


def test_train_prints_data_results_and_choice(small_data, tmp_path, capsys):
    arguments = ["train", "--data", str(small_data), "--output", str(tmp_path / "m"), "--seed", "4", *SIZES]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "train: " in out
    assert "240 rows (None " in out
    assert "sentences shared between splits: none" in out
    record = json.loads((tmp_path / "m" / "training.json").read_text())
    figure = f"{100 * record['metrics']['test']['aspect_auc']:.1f}"
    (line,) = [line for line in out.partition("\ntest\n")[2].splitlines() if line.startswith("QACG-BERT ")]
    assert line.split()[3] == figure
    assert "selected by strict accuracy on dev" in out
    assert record["options"] | {"seed": 4, "hidden_size": 16, "epochs": 2} == record["options"]


def other_value(name, field):
    """A value that is not the default of an option and requires no other option."""
    special = {
        **{"protocol": "released", "schedule": "linear", "from_checkpoint": "somewhere", "tokenizer": "words"},
        **{"tensorboard": "logs", "pooler": "cls", "attention": "eager", "model": "cg-bert", "format": "columns"},
        **{"precision": "bfloat16"},
        **{"delimiter": ";", "quoting": "none", "encoding": "cp1252", "dropout": 0.125, "warmup": 0.5, "balance": 0.75},
        **{"dev_fraction": 0.25, "aspects": ("a", "b"), "labels": ("x", "y"), "aspect_columns": ("food", "price")},
    }
    if name in special:
        return special[name]
    return {int: 12, float: 0.5, bool: True, str: f"the {name}"}[kind_of(field)]


@pytest.mark.parametrize("by", ["set", "file"])
def test_train_passes_every_option_to_training(monkeypatch, small_data, tmp_path, by):
    seen = {}

    def spy(dataset, output, options, seeds, **kwargs):
        seen.update(vars(options), seeds=seeds, **kwargs)
        raise KeyboardInterrupt

    def read(path, splits=(), options=None, **kwargs):
        seen.update(vars(options))
        return load_data(small_data)

    monkeypatch.setattr("qacg_models.sentiment.training.train_seeds", spy)
    monkeypatch.setattr("qacg_models.sentiment.dataset.load_data", read)
    names = [field for kind in (DataOptions, TrainingOptions) for field in dataclasses.fields(kind)]
    expected = {field.name: other_value(field.name, field) for field in names if field.name != "seed"}
    # A checkpoint determines the sizes, and a wide table has no aspect and label columns: these options need a second
    # call.
    others = {name: expected.pop(name) for name in (*SIZE_OPTIONS, "wide", "aspect_columns")}
    for given in (expected, others):
        settings = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
        flags = [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]
        if by == "file":
            (tmp_path / "run.json").write_text(json.dumps(settings | {"seeds": [7, 8]}))
            flags = ["--config", str(tmp_path / "run.json")]
        else:
            flags += ["--seeds", "7", "8"]
        seen.clear()
        assert main(["train", "--data", str(small_data), "--output", str(tmp_path / "m"), *flags]) == 130
        assert {name: seen[name] for name in given} == given
        assert seen["seeds"] == [7, 8]
        assert (seen["overwrite"], seen["resume"]) == (False, False)


def test_train_bad_run_file_raises(small_data, tmp_path, capsys):
    path = tmp_path / "run.yaml"
    train = ["train", "--data", small_data, "--output", tmp_path / "m", "--config", path]
    fails(capsys, train, "cannot be read as YAML or JSON")
    for text, reason in (
        ("- 1", "expected option names with values, got a list"),
        ("epoch: 3", "unknown option 'epoch'. Available: data, output"),
        ("epochs: many", "epochs: expected a value of type int, got 'many'"),
        ("epochs: true", "epochs: expected a value of type int, got True"),
        ("epochs: [", "cannot be read as YAML or JSON"),
    ):
        path.write_text(text)
        fails(capsys, train, reason)
    path.write_text("epochs: 1")
    fails(capsys, ["train", "--config", path], "data: expected a path, from --data or the file of --config")


@pytest.mark.full
def test_train_of_several_seeds_gives_mean_and_deviation(small_data, tmp_path, capsys):
    output = tmp_path / "m"
    train = ["train", "--data", str(small_data), "--output", str(output), "--seeds", "1", "2", *SIZES]
    assert main(train) == 0
    printed = capsys.readouterr().out
    records = [json.loads((output / f"seed-{seed}" / "training.json").read_text()) for seed in (1, 2)]
    values = [100 * record["metrics"]["test"]["aspect_auc"] for record in records]
    assert values[0] != values[1]
    assert "\ntest\nsentihood, test, in %:\n" in printed and " | 1 2 | " in printed
    assert f" | {sum(values) / 2:.1f} ± {abs(values[0] - values[1]) / 2**0.5:.1f} | " in printed
    fails(capsys, train, "expected a new folder, got files of an earlier run. Continue that run with --resume")
    assert main([*train, "--resume"]) == 0
    assert "seed-2: the run is finished; nothing is left to resume" in capsys.readouterr().out
    fails(capsys, [*train, "--seeds", "1", "1"], "seeds: expected one or several different integers, got [1, 1]")


@pytest.mark.full
def test_released_protocol_reports_selection_on_test(small_data, tmp_path, capsys):
    output = tmp_path / "m"
    arguments = ["train", "--data", str(small_data), "--output", str(output), "--set", "protocol=released"]
    assert main([*arguments, *SIZES, "--learning-rate", "3e-3"]) == 0
    printed = capsys.readouterr().out
    assert "QACG-BERT (chosen on test)" in printed
    assert "selected by strict accuracy on test" in printed
    assert "so the metrics on test are optimistic" in printed
    record = json.loads((output / "training.json").read_text())
    assert record["selected"]["split"] == "test"
    assert record["options"] | {"balance": 1.0, "eval_every": 25, "pooler": "cls"} == record["options"]
    assert main(["evaluate", str(output), "--data", str(small_data)]) == 0
    assert "QACG-BERT (chosen on test)" in capsys.readouterr().out
    assert main(["evaluate", str(output), "--data", str(small_data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["selected_on"] == "test"


def test_evaluate_reproduces_the_stored_metrics(model, small_data, capsys):
    exact = ["--precision", "float32"]
    for split in ("dev", "test"):
        assert main(["evaluate", str(model), "--data", str(small_data), "--split", split, *exact]) == 0
        out = capsys.readouterr().out
        assert "metrics are identical to those that training stored" in out and "  from " in out
    assert main(["evaluate", str(model), "--data", str(small_data), "--json", *exact]) == 0
    printed = json.loads(capsys.readouterr().out)
    record = json.loads((model / "training.json").read_text())
    assert printed["QACG-BERT"] == record["metrics"]["test"]
    assert printed["majority"] == record["majority"]["test"]
    for name in ("strict_accuracy", "aspect_macro_f1", "aspect_auc", "sentiment_accuracy", "sentiment_auc"):
        low, high = printed["intervals"][name]
        assert low <= printed["QACG-BERT"][name] <= high
        assert low < high or name == "aspect_macro_f1"  # 0 in every sample, because the model is tiny
    # The path of one file equals the split of the folder; the samples are seeded.
    assert main(["evaluate", str(model), "--data", str(small_data / "test.tsv"), "--json", *exact]) == 0
    assert json.loads(capsys.readouterr().out)["intervals"] == printed["intervals"]


def test_evaluate_of_other_data_prints_a_notice(model, small_data, capsys):
    assert main(["evaluate", str(model), "--data", str(sample_directory()), "--split", "dev"]) == 0
    assert "training stored no metrics for " in capsys.readouterr().out
    assert main(["evaluate", str(model), "--data", str(small_data), "--split", "train"]) == 0
    out = capsys.readouterr().out
    assert f"the model was trained on rows of {small_data / 'train.tsv'}, so the metrics are optimistic\n" in out
    assert out.count("optimistic") == 1


def test_cli_from_a_csv_to_an_analysis(tmp_path, capsys):
    data, model = tmp_path / "reviews.csv", str(tmp_path / "model")
    words = {"good": "superb", "bad": "awful"}
    lines = [
        f"the {topic} was {words[label]} in week {week};{topic};{label}"
        for week in range(60)
        for topic, label in (("food", ("good", "bad")[week % 2]), ("staff", ("good", "bad")[week % 3 == 0]))
    ]
    data.write_text("\n".join(["review;topic;verdict", *lines]) + "\n", encoding="utf-8-sig")
    columns = ["--text-column", "review", "--aspect-column", "topic", "--label-column", "verdict"]
    train = ["train", "--data", str(data), "--output", model, *columns, *SIZES, "--epochs", "6"]
    wrong = [*train, "--delimiter", ","]
    fails(capsys, wrong, f"{data}:1: columns: expected 'review', 'topic', 'verdict'", "with --delimiter ';'")
    assert main(train) == 0
    assert "no dev file: 10% of the training sentences are used as dev" in capsys.readouterr().out
    evaluate = ["evaluate", model, "--data", str(data)]
    assert main([*evaluate, "--split", "dev"]) == 0
    assert "metrics are identical to those that training stored" in capsys.readouterr().out
    assert main(evaluate) == 0
    assert "so the metrics are optimistic; --split dev evaluates rows that were not used" in capsys.readouterr().out
    fails(capsys, [*evaluate, "--split", "test"], "expected a folder with a file for test, got a file")
    question = ["--text", "the food was awful", "--aspects", "food"]
    assert main(["predict", model, *question]) == 0
    assert capsys.readouterr().out.splitlines()[2].split()[4:6] == ["food", "bad"]
    assert main(["analyze", model, *question, "--output", str(tmp_path / "page")]) == 0
    assert "the food was awful" in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    # A finished run is not changed; other options raise an error.
    before = (tmp_path / "model" / "training.json").read_bytes()
    capsys.readouterr()
    assert main([*train, "--resume"]) == 0
    assert ": the run is finished; nothing is left to resume" in capsys.readouterr().out
    assert (tmp_path / "model" / "training.json").read_bytes() == before
    other = "data dev_seed: expected 0, as when the run started, got 1. Use --set dev_seed=0, or start over"
    fails(capsys, [*train, "--resume", "--set", "dev_seed=1"], other)


def test_train_flags_override_set_and_the_file(monkeypatch, small_data, tmp_path):
    def spy(dataset, output, options, seeds, **kwargs):
        assert (options.epochs, options.layers, options.heads) == (3, 2, 1)
        raise KeyboardInterrupt

    monkeypatch.setattr("qacg_models.sentiment.training.train_seeds", spy)
    (tmp_path / "run.yaml").write_text("epochs: 1\nlayers: 1\nheads: 1\n")
    flags = ["--config", str(tmp_path / "run.yaml"), "--set", "epochs=2", "--epochs", "3", "--set", "layers=2"]
    assert main(["train", "--data", str(small_data), "--output", str(tmp_path / "m"), *flags]) == 130


def test_bad_set_raises(model, small_data, tmp_path, capsys):
    train = ["train", "--data", tmp_path, "--output", tmp_path / "m", "--set"]
    fails(capsys, [*train, "fly=1"], "set: unknown option 'fly'. Available: data, output")
    fails(capsys, [*train, "epochs=many"], "set: epochs: expected a value of type int, got 'many'")
    fails(capsys, [*train, "balance="], "Class balance of the sampled rows")
    fails(capsys, ["evaluate", model, "--data", small_data, "--set", "epochs=1"], "set: unknown option 'epochs'")


def test_cli_bad_arguments_print_one_line(model, small_data, tmp_path, capsys):
    train = ["train", "--data", small_data, "--output"]
    fails(capsys, ["train", "--data", tmp_path / "no", "--output", tmp_path / "m"], "no such folder")
    fails(capsys, [*train, model], "which exists", "--overwrite")
    fails(capsys, [*train, tmp_path, "--set", "cased=true"], "cased: expected a vocab.txt as tokenizer")
    data = ["--data", small_data]
    fails(capsys, ["evaluate", tmp_path / "no", *data], "no such folder")
    fails(capsys, ["evaluate", tmp_path, *data], "without training.json")
    fails(capsys, ["evaluate", model, "--data", tmp_path], "expected data in a known format")
    fails(capsys, ["evaluate", model, *data, "--device", "abacus"], "got 'abacus'")


def test_evaluate_damaged_model_folder_raises(model, small_data, tmp_path, capsys):
    shutil.copytree(model, tmp_path / "copy")
    evaluate, weights = ["evaluate", tmp_path / "copy", "--data", small_data], tmp_path / "copy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    fails(capsys, evaluate, "cannot be loaded", "model.safetensors: is damaged or truncated")
    weights.unlink()
    fails(capsys, evaluate, "got a folder without model.safetensors")


@pytest.mark.full
def test_train_with_your_own_vocabulary(small_data, tmp_path, capsys):
    words = {word.lower() for line in (small_data / "train.tsv").open(encoding="utf-8") for word in line.split()}
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(words)]
    vocabulary, output = tmp_path / "vocab.txt", tmp_path / "model"
    vocabulary.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    tokenizer = ["--set", f"tokenizer={vocabulary}", *SIZES]
    assert main(["train", "--data", str(small_data), "--output", str(output), *tokenizer]) == 0
    assert json.loads((output / "config.json").read_text())["vocab_size"] == len(pieces)
    assert main(["evaluate", str(output), "--data", str(small_data)]) == 0
    assert "metrics are identical" in capsys.readouterr().out


def test_load_trained_without_the_head_raises(model, tmp_path):
    shutil.copytree(model, tmp_path, dirs_exist_ok=True)
    tensors = load_file(model / "model.safetensors")
    del tensors["classifier.bias"], tensors["classifier.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with raises("ModelFolderError: expected the files that training wrote, got ...classifier.weight"):
        load_trained(tmp_path)


def test_package_runs_as_the_command(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["qacg_models.cli", "--version"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("qacg_models.cli", run_name="__main__")
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"qacg {qacg_kernels.__version__}\n"


def test_info_does_not_import_heavy_packages():
    code = (
        "import sys; from qacg_models.cli import main; main(['info', '--json']);"
        " print([m for m in ('transformers', 'matplotlib', 'sklearn', 'tokenizers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    printed, _, loaded = out.rstrip().rpartition("\n")
    assert "reference" in json.loads(printed)["backends"]
    assert loaded == "[]"


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["train", "--model", "gpt"], ["evaluate", "m"], ["train", "--epochs", "many"]]
)
def test_cli_usage_error_prints_usage(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: qacg" in capsys.readouterr().err


def test_output_encoding_without_a_character_is_an_error(tmp_path, monkeypatch, capsys):
    write_model(tmp_path)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert main(["predict", str(tmp_path), "--text", "the café"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("qacg predict: standard output: expected an encoding with '\\xe9', got ascii. Set")


def test_messages_name_existing_flags():
    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    known = {
        flag for parser in commands.choices.values() for action in parser._actions for flag in action.option_strings
    }
    known |= {"--version", "--nproc-per-node", "--cpus"}  # the last ones are of torchrun and docker
    sources = [path.read_text(encoding="utf-8") for path in Path(qacg_models.__file__).parent.rglob("*.py")]
    assert {flag for text in sources for flag in re.findall(r"(?<![-\w])--[a-z][a-z0-9-]+", text)} <= known

"""The recipes of CONTRIBUTING.md, followed in a copy of the package, give a working model and format."""

import csv
import json
import os
import re
import shutil
from dataclasses import replace

import pytest
import warm_python
from following import ROOT, apply, files, touched, walk

from qacg_kernels.backends.triton import tile_tables

SIZES = ("--set", "hidden_size=32", "--set", "layers=1", "--set", "heads=2", "--set", "intermediate_size=64")
HOT, COLD = "it was hot on day 1 of train", "it was cold on day 2 of train"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of python/qacg_models with the files of the recipes for a model and a data format."""
    root = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "python" / "qacg_models", root / "python" / "qacg_models", ignore=ignored)
    for recipe in ("model", "data_format"):
        apply(recipe, root)
    return root


def run(copy, *arguments):
    """The output of a Python process whose qacg_models is the copy."""
    done = warm_python.run(*arguments, cwd=copy, PYTHONPATH=os.pathsep.join([str(copy / "python"), str(ROOT)]))
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def qacg(copy, *arguments):
    return run(copy, "-m", "qacg_models.cli", *arguments)


@pytest.fixture(scope="module")
def data(copy):
    """Days good for swimming or for skiing, never for both: the label depends on text and aspect together."""
    folder = copy / "days"
    folder.mkdir()
    for split, days in (("train", 48), ("dev", 12), ("test", 12)):
        lines = []
        for day in range(days):
            text = f"it was {'hot' if day % 2 else 'cold'} on day {day} of {split}"
            swimming, skiing = ("good", "bad") if day % 2 else ("bad", "good")
            lines += [f"swimming | {swimming} | {text}", f"skiing | {skiing} | {text}"]
        (folder / f"{split}.lines").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(copy, data):
    """A toy model trained from scratch on data in the toy format."""
    output = copy / "trained"
    options = "--model toy-bert --max-steps 80 --batch-size 16 --set dropout=0 --learning-rate 0.01"
    qacg(copy, "train", "--data", data, "--output", output, *SIZES, *options.split())
    return output


def test_recipes_name_the_files_that_change():
    assert files("Adding a model", NAME="toy_bert") == touched("model")
    assert files("Adding a data format", NAME="toy_lines") == touched("data_format")
    assert len(touched("model")) <= 5
    assert len(touched("data_format")) <= 5


@pytest.mark.full
def test_toy_model_learns_from_the_toy_format(trained):
    record = json.loads((trained / "training.json").read_text(encoding="utf-8"))
    assert record["options"]["model"] == "toy-bert"
    assert record["task"]["aspects"] == ["skiing", "swimming"]
    assert record["metrics"]["test"]["accuracy"] > 0.9, "both labels are equally frequent"
    assert record["loss"][-1][1] < record["loss"][0][1]


@pytest.mark.full
def test_toy_model_predicts(copy, trained):
    (copy / "texts.csv").write_text(f"text\n{HOT}\n{COLD}\n", encoding="utf-8")
    qacg(copy, "predict", trained, "--input", "texts.csv", "--output", "predicted.csv", "--overwrite")
    with (copy / "predicted.csv").open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    found = {(row["text"], row["aspect"]): row["label"] for row in rows}
    assert found == {
        (HOT, "swimming"): "good",
        (HOT, "skiing"): "bad",
        (COLD, "swimming"): "bad",
        (COLD, "skiing"): "good",
    }
    assert all(abs(float(row["p(good)"]) + float(row["p(bad)"]) - 1) < 1e-5 for row in rows)


LOAD = """
import sys, torch, transformers, qacg_models
from qacg_models.sentiment.trained_model import load_trained
qacg_models.register_auto_classes()
assert qacg_models.__file__.startswith(sys.argv[1]), qacg_models.__file__
ours = qacg_models.ToyBertForSequenceClassification.from_pretrained(sys.argv[2]).eval()
auto = transformers.AutoModelForSequenceClassification.from_pretrained(sys.argv[2]).eval()
assert type(auto) is type(ours)
assert isinstance(auto.config, qacg_models.ToyBertConfig)
assert auto.config.contexts == ["skiing", "swimming"]
assert auto.config.id2label == {0: "bad", 1: "good"}
tokens = load_trained(sys.argv[2]).tokenizer([sys.argv[3]] * 2, return_tensors="pt", return_token_type_ids=True)
for model in (ours, auto):
    out = model(**tokens, context_ids=torch.tensor([0, 1]), labels=torch.tensor([0, 1]))
    assert out.logits.argmax(-1).tolist() == [0, 1], out.logits
    out.loss.backward()
    without = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    # A constant summand of all scores of a query does not change its softmax.
    assert all(name.endswith("key.bias") for name in without), without
"""


@pytest.mark.full
def test_toy_model_loads_by_its_class_and_the_auto_class(copy, trained):
    run(copy, "-c", LOAD, copy, trained, HOT)


@pytest.mark.parametrize(
    ("title", "placeholders"),
    [("Adding a gate variant", {}), ("Adding a backend", {"NAME": "cpu"})],
)
def test_files_of_the_other_recipes_exist(title, placeholders):
    named = files(title, **placeholders)
    assert named
    assert not {path for path in named if not (ROOT / path).exists()}


def test_tile_table_is_one_file(tmp_path, monkeypatch):
    """A new table is used for GPUs of its architecture, and for newer ones with the same shared memory."""
    guide = (ROOT / "docs" / "how-to" / "add-a-backend.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"`([\w/]+/)sm_NN\.json`", guide)
    assert ROOT / named == tile_tables.SHIPPED
    shutil.copytree(tile_tables.SHIPPED, tmp_path / "tables")
    monkeypatch.setattr(tile_tables, "SHIPPED", tmp_path / "tables")
    assert "sm_120" not in tile_tables.shipped_architectures()
    table = replace(tile_tables.shipped("sm_80"), architecture="sm_120", shared_bytes=99 * 1024)
    tile_tables.save(table, tmp_path / "tables" / "sm_120.json")
    assert "sm_120" in tile_tables.shipped_architectures()
    assert tile_tables.shipped("sm_120") == table
    expected = (("sm_120", 99, "sm_120"), ("sm_121", 99, "sm_120"), ("sm_100", 227, "sm_100"))
    for architecture, kibibytes, table_of in expected:
        assert tile_tables.nearest_shipped(architecture, 1024 * kibibytes).architecture == table_of


FOLLOW = """
import json, sys, threading
from qacg_models.cli import main
steps, seen = [tuple(step) for step in json.loads(sys.argv[1])], []
def called(frame, event, argument):
    if event == "call":
        step = frame.f_code.co_filename.partition("/python/qacg_models/")[2], frame.f_code.co_name
        if step in steps and step not in seen:
            seen.append(step)
sys.setprofile(called)
code = main(sys.argv[2:])
sys.setprofile(None)
print(json.dumps(seen))
sys.exit(code)
"""


@pytest.mark.full
def test_steps_of_a_prediction_are_those_that_run(copy, data):
    steps = walk("From a CSV row to a prediction")
    paths = [path for path, _ in steps]
    assert len(set(paths)) == len(paths) < 12, "each file has one step"
    qacg(copy, "train", "--data", data, "--output", "qacg", *SIZES, "--max-steps", "1")
    (copy / "row.csv").write_text(f"text\n{HOT}\n", encoding="utf-8")
    within = [(path.removeprefix("python/qacg_models/"), name) for path, name in steps]
    output = run(
        copy, "-c", FOLLOW, json.dumps(within), "predict", "qacg", "--input", "row.csv", "--output", "row-out.csv"
    )
    assert [tuple(step) for step in json.loads(output.splitlines()[-1])] == within


@pytest.mark.full
def test_steps_of_a_training_are_those_that_run(copy, data):
    steps = walk("From `qacg train` to a durable checkpoint")
    paths = [path for path, _ in steps]
    assert len(set(paths)) == len(paths) < 10
    within = [(path.removeprefix("python/qacg_models/"), name) for path, name in steps]
    flags = ("--data", data, "--output", "durable", *SIZES, "--max-steps", "1")
    output = run(copy, "-c", FOLLOW, json.dumps(within), "train", *flags)
    assert [tuple(step) for step in json.loads(output.splitlines()[-1])] == within

"""The recipes of CONTRIBUTING.md, followed in copies of the packages, give what they promise; its walks are right."""

import csv
import json
import shutil

import pytest
from following import apply, files, touched, walk
from processes import ROOT, run_python

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
    return run_python(*arguments, cwd=copy, paths=(copy / "python", ROOT)).stdout


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


@pytest.mark.parametrize(
    ("recipe", "title", "name"),
    [
        ("model", "Adding a model", "toy_bert"),
        ("data_format", "Adding a data format", "toy_lines"),
        ("backend", "Adding a backend", "toy"),
    ],
)
def test_recipe_names_the_files_that_change(recipe, title, name):
    named, changed = files(title, name), touched(recipe)
    assert changed <= named and len(changed) <= 3
    assert {path for path in named if not (ROOT / path).exists()} <= changed, "other files exist"


def test_files_of_the_recipe_for_a_gate_exist():
    assert {path for path in files("Adding a gate variant") if not (ROOT / path).exists()} == set()


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
    assert model(**tokens, context_ids=torch.tensor([0, 1])).logits.argmax(-1).tolist() == [0, 1]
"""


@pytest.mark.full
def test_toy_model_loads_by_its_class_and_the_auto_class(copy, trained):
    run(copy, "-c", LOAD, copy, trained, HOT)


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


def followed(copy, title, *arguments):
    """Runs a command; returns the steps of a section of CONTRIBUTING.md, and those of them that ran, in order."""
    steps = [(path.removeprefix("python/qacg_models/"), name) for path, name in walk(title)]
    output = run(copy, "-c", FOLLOW, json.dumps(steps), *arguments)
    return steps, [tuple(step) for step in json.loads(output.splitlines()[-1])]


@pytest.mark.full
def test_steps_of_the_walks_are_those_that_run(copy, data):
    (copy / "row.csv").write_text(f"text\n{HOT}\n", encoding="utf-8")
    flags = ("--data", data, "--output", "durable", *SIZES, "--max-steps", "1")
    training, trained = followed(copy, "From `qacg train` to a durable checkpoint", "train", *flags)
    assert trained == training
    flags = ("--input", "row.csv", "--output", "row-out.csv")
    prediction, predicted = followed(copy, "From a CSV row to a prediction", "predict", "durable", *flags)
    assert predicted == prediction
    assert len({path for path, _ in training}) <= 9
    assert len({path for path, _ in prediction}) <= 11


COMPARE = """
import sys, torch
import qacg_kernels as qk
from qacg_kernels.testing import assert_within_budget, evaluate, evaluate_exactly, rounding_scales
from qacg_kernels.testing import through_backend, through_eager
from qacg_kernels.testing.inputs import Case, make_inputs

assert qk.__file__.startswith(sys.argv[1]), qk.__file__
for case in (dict(), dict(gate="shared", bias="shared", dropout_p=0.1), dict(gate="per_head", form="column")):
    inputs = make_inputs(Case("toy", queries=9, head_dim=8, **case), torch.float32)
    exact, scales, eager = evaluate_exactly(inputs), rounding_scales(inputs), evaluate(inputs, through_eager)
    for name, got in evaluate(inputs, through_backend("toy")).items():
        assert_within_budget(name, got, eager[name], exact[name], scales[name])
assert "toy" in qk.available_backends()
x, lam = torch.randn(1, 2, 3, 65), torch.rand(1, 2, 3)
print(qk.explain(x, x, x, x, x, lam).reasons["toy"])
compiled = torch.compile(lambda t: qk.quasi_attention(t, t, t, t, t, lam, backend="toy"), backend="eager")
print(tuple(compiled(x[..., :8]).shape))
"""


def test_toy_backend_meets_the_error_rule(tmp_path):
    shutil.copytree(ROOT / "qacg_kernels", tmp_path / "qacg_kernels", ignore=shutil.ignore_patterns("__pycache__"))
    apply("backend", tmp_path)
    output = run_python("-c", COMPARE, tmp_path, cwd=tmp_path, paths=(tmp_path,)).stdout
    assert output.splitlines() == ["['head size: expected 1 to 64, got 65']", "(1, 2, 3, 8)"]

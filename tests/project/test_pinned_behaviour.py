"""What users rely on stays: public names, flags, fields of configurations, outputs of models, predictions.

`pinned_behaviour.json` has the expected values. After an intended change, run this file as a script, with `.`,
`python`, `tests` and `tests/support` on PYTHONPATH. It writes the values again, and their diff is a part of the change.
Exported files are not pinned, because `qacg export` compares them with the predictions, which are.
"""

import argparse
import csv
import inspect
import json
import sys
from pathlib import Path

import pytest
import qacg_models
import torch
from model_cases import CASES
from qacg_models.cli.program import _parser, main
from qacg_models.sentiment.dataset import sample_directory
from qacg_models.sentiment.options import DataOptions, TrainingOptions
from untrained import write_model

import qacg_kernels

FILE = Path(__file__).with_name("pinned_behaviour.json")
METHODS = {
    "FusedQuasiAttention": ["forward"],
    "AspectSentiment": ["fit", "from_pretrained", "__call__", "predict", "evaluate", "save_pretrained"],
    "AspectSentimentClassifier": ["fit", "predict", "predict_proba"],
    "QuestionAnswerer": ["answer", "answers"],
    "ExtractiveSummarizer": ["summarize"],
}
TEXTS = 40
SEVERAL_DIGITS = 1e-4  # of a probability in float32, on any processor


def signatures():
    """Names and defaults of the parameters of every public function and class, and of the listed methods."""
    found = {}
    for package in (qacg_kernels, qacg_models):
        for name in package.__all__:
            value = getattr(package, name)
            found[f"{package.__name__}.{name}"] = parameters(value)
            for method in METHODS.get(name, ()):
                found[f"{package.__name__}.{name}.{method}"] = parameters(getattr(value, method))
    return found


def parameters(function):
    """The signature without annotations."""
    named = inspect.signature(function).parameters.values()
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in named]))


def flags():
    """The arguments of each command of `qacg`."""
    (commands,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {
        name: " ".join(sorted(flag for action in parser._actions for flag in action.option_strings or [action.dest]))
        for name, parser in commands.choices.items()
    }


def fields():
    """The names of the fields of each configuration and of the options."""
    configs = {case.config: case.config_class for case in CASES.values()}
    found = {name: " ".join(sorted(config().to_dict())) for name, config in configs.items()}
    return found | {kind.__name__: " ".join(kind.__annotations__) for kind in (DataOptions, TrainingOptions)}


def outputs():
    """Values of the outputs of each model, in float64."""
    found = {}
    for name, case in CASES.items():
        with torch.no_grad():
            results = case.build().double()(**case.inputs).to_tuple()
        found[name] = [t.flatten()[:: max(1, t.numel() // 4)][:4].tolist() for t in results if torch.is_tensor(t)]
    return found


def predictions(folder):
    """The predictions of a model with random weights for the first bundled reviews."""
    lines = (sample_directory() / "reviews.csv").read_text(encoding="utf-8").splitlines()
    (folder / "reviews.csv").write_text("\n".join(lines[: 1 + TEXTS]) + "\n", encoding="utf-8")
    model = write_model(folder / "model")
    out = folder / "predictions.csv"
    assert main(["predict", str(model), "--input", str(folder / "reviews.csv"), "--output", str(out)]) == 0
    return out.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def pinned():
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("measure", [signatures, flags, fields])
def test_names_stay(measure, pinned):
    found, expected = measure(), pinned[measure.__name__]
    assert {name: found.get(name) for name in expected} == expected
    assert sorted(found) == sorted(expected), "a new public name: write the file again"


def test_commands_have_at_most_60_distinct_flags():
    assert len({flag for line in flags().values() for flag in line.split()}) <= 60


@pytest.mark.filterwarnings("ignore:this call of quasi-attention runs in the PyTorch reference")
def test_outputs_of_models_stay(pinned):
    found, expected = outputs(), pinned["outputs"]
    assert found.keys() == expected.keys()
    for name, tensors in expected.items():
        scale = max(abs(x) for t in tensors for x in t)
        assert [len(t) for t in found[name]] == [len(t) for t in tensors]
        for mine, other in zip(found[name], tensors):
            assert mine == pytest.approx(other, rel=0, abs=1e-12 * scale), name


def test_predictions_stay(pinned, tmp_path):
    found, expected = predictions(tmp_path), pinned["predictions"]
    assert len(found) == len(expected)
    for mine, other in zip(csv.reader(found), csv.reader(expected)):
        assert len(mine) == len(other)
        for cell, value in zip(mine, other):
            assert cell == value or float(cell) == pytest.approx(float(value), abs=SEVERAL_DIGITS)


def write():
    """Writes the expected values."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        predicted = predictions(Path(folder))
    values = {
        "signatures": signatures(),
        "flags": flags(),
        "fields": fields(),
        "outputs": outputs(),
        "predictions": predicted,
    }
    FILE.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(write())

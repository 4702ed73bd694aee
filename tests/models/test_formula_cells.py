"""Cells that a spreadsheet would run: written as they are, or with an apostrophe where that is asked for."""

import csv
import json

import pytest
from qacg_models.cli import main
from qacg_models.data.columns import Columns, records
from qacg_models.data.requests import Request
from qacg_models.data.task import Task
from qacg_models.errors import InputError
from qacg_models.inference import bulk_prediction
from qacg_models.inference.aspect_sentiment import AspectPrediction
from qacg_models.inference.prediction_format import PredictionLines
from test_cli import fails
from untrained import write_model

FORMULAS = ["=1+1", "+49 30 1234 never answers", "-5 stars", "@home service", '=HYPERLINK("http://x","y")', "\t=1"]
OTHERS = ["'quoted' food", "5-star food", "a = b", "1+1", " plain"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("formulas") / "model")


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    rows = [{"text": text, "key": f"-{number}"} for number, text in enumerate(FORMULAS + OTHERS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def predict(model, texts, output, *flags):
    choices = ["--id-column", "key", "--aspects", "food", "--output", output, *flags]
    arguments = ["predict", model, "--input", texts, *choices]
    assert main([str(argument) for argument in arguments]) == 0
    with output.open(newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def test_texts_come_back_through_our_own_reader(model, texts, tmp_path):
    predict(model, texts, tmp_path / "out.csv")
    columns = Columns(aspect="aspect", label="label", id="id")
    read = [record for _, record in records(tmp_path / "out.csv", columns)]
    assert [record["text"] for record in read] == FORMULAS + OTHERS
    assert [record["id"] for record in read] == [f"-{number}" for number in range(len(read))]


def test_an_apostrophe_before_what_a_spreadsheet_would_run(model, texts, tmp_path):
    plain = predict(model, texts, tmp_path / "plain.csv")
    escaped = predict(model, texts, tmp_path / "escaped.csv", "--escape-formulas")
    assert [row["text"] for row in escaped] == [f"'{text}" for text in FORMULAS] + OTHERS
    assert all(row["id"].startswith("'-") for row in escaped)
    for before, after in zip(plain, escaped, strict=True):  # numbers stay numbers
        assert {**before, "text": "", "id": ""} == {**after, "text": "", "id": ""}


def test_aspects_labels_and_the_header_are_cells_too():
    task = Task("own", ("-1", "+1"), ("@bar",))
    prediction = AspectPrediction("good", "", "@bar", "-1", {"-1": 1.0, "+1": 0.0})
    lines = PredictionLines("csv", task, False, escape_formulas=True)
    assert lines.line(Request(1, "good"), prediction) == "1,good,'@bar,'-1,1.000000,0.000000\n"
    assert lines.header() == "line,text,aspect,label,p(-1),p(+1)\n"
    with pytest.raises(InputError, match=r"escape_formulas: got it for jsonl, wanted a [.]csv"):
        PredictionLines("jsonl", task, False, escape_formulas=True)


def test_runs_that_do_not_go_together(model, texts, tmp_path, capsys, monkeypatch):
    command = ["predict", model, "--input", texts]
    fails(capsys, [*command, "--escape-formulas"], "escape-formulas: got it without a .csv")
    fails(capsys, [*command, "--escape-formulas", "--output", tmp_path / "o.jsonl"], "escape-formulas", ".csv")
    choices = ["--output", tmp_path / "o.csv", "--window", 4]
    with monkeypatch.context() as patch:
        patch.setattr(bulk_prediction, "_join", stop)
        assert main([str(argument) for argument in [*command, *choices]]) == 130
    assert (tmp_path / "o.csv.parts").is_dir()
    capsys.readouterr()
    error = fails(capsys, [*command, *choices, "--resume", "--escape-formulas"], "holds a run of another written as;")
    assert "--overwrite begins anew" in error
    assert main([str(argument) for argument in [*command, *choices, "--resume"]]) == 0


def stop(*_):
    raise KeyboardInterrupt

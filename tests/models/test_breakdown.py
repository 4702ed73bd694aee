"""Scores by label and aspect, confusion matrix and errors of `qacg evaluate`."""

import contextlib
import html
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from model_sizes import SMALL_FLAGS
from qacg_models.cli.program import main
from qacg_models.sentiment.example import Example
from qacg_models.sentiment.metrics import class_scores, confusion_matrix
from qacg_models.sentiment.report.evaluation import ERRORS, Breakdown
from sklearn import metrics as oracle
from table_files import write_table
from untrained import OWN, write_model


def row(line, aspect, label, text=""):
    return Example(str(line), text or f"text {line}", aspect, "", aspect, label, line)


def shares(*confidences):
    """Probabilities of three labels from (label, probability) pairs."""
    found = np.empty((len(confidences), 3))
    for values, (label, share) in zip(found, confidences):
        values[:] = (1 - share) / 2
        values[label] = share
    return found


def test_class_scores_match_scikit_learn():
    rng = np.random.default_rng(0)
    gold, predicted = rng.integers(0, 4, 200), rng.integers(0, 4, 200)
    confusion = confusion_matrix(gold, predicted, 4)
    np.testing.assert_array_equal(confusion, oracle.confusion_matrix(gold, predicted))
    expected = np.array(oracle.precision_recall_fscore_support(gold, predicted)).T
    found = [(one.precision, one.recall, one.f1, one.support) for one in class_scores(confusion)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_class_scores_of_unused_classes_are_nan_or_zero():
    present, predicted_only = class_scores(confusion_matrix([0, 0], [1, 1], 2))
    assert math.isnan(present.precision)
    assert (present.recall, present.f1, present.support) == (0, 0, 2)
    assert predicted_only.precision == 0
    assert math.isnan(predicted_only.recall)
    assert math.isnan(predicted_only.f1)


def test_breakdown_separates_aspects_and_sorts_errors():
    rows = [row(2, "food", 0), row(3, "food", 1, "fine soup"), row(4, "price", 2, "too dear")]
    found = Breakdown.of(OWN, rows, shares((0, 0.9), (2, 0.6), (1, 0.8)))
    assert set(found.by_aspect) == {"food", "price"}
    assert [one.support for one in found.by_aspect["price"].values()] == [0, 0, 1]
    assert [(one["line"], one["text"], one["predicted"]) for one in found.errors] == [
        (4, "too dear", OWN.labels[1]),
        (3, "fine soup", OWN.labels[2]),
    ]
    assert found.error_count == 2


def test_breakdown_lists_the_most_confident_errors_only():
    rows = [row(line, "food", 0) for line in range(ERRORS + 5)]
    found = Breakdown.of(OWN, rows, shares(*((1, 0.5 + line / 100) for line in range(ERRORS + 5))))
    assert [one["line"] for one in found.errors] == [*range(ERRORS + 4, 4, -1)]
    assert found.error_count == ERRORS + 5


def test_breakdown_errors_name_target_and_aspect():
    wrong = Example("1", "a text", 'hotel - "room - size"', "hotel", "room - size", 0, 7)
    found = Breakdown.of(replace(OWN, aspects=("room - size",), has_targets=True), [wrong], shares((1, 0.9)))
    cells = dict(zip(found.error_cells()[0], found.error_cells()[1][0]))
    for shown in (cells, found.to_json()["errors"][0]):
        assert (shown["target"], shown["aspect"]) == ("hotel", "room - size")


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    """JSON, page and rows of an evaluation."""
    base = tmp_path_factory.mktemp("evaluation")
    model = write_model(base / "model", layers=1)
    rows = [(f"slow <b> {n}", OWN.aspects[n % 3], OWN.labels[n % 2]) for n in range(12)]
    data = write_table(base / "new.csv", [("text", "aspect", "label"), *rows])
    flags = ["--json", "--report", str(base / "page")]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["evaluate", str(model), "--data", str(data), *flags]) == 0
    return json.loads(printed.getvalue()), (base / "page" / "index.html").read_text(), rows


def test_evaluate_json_and_page_have_the_breakdown(evaluation):
    content, page, rows = evaluation
    found = content["breakdown"]
    assert {name: one["support"] for name, one in found["labels"].items()} == {
        name: sum(label == name for _, _, label in rows) for name in OWN.labels
    }
    assert found["aspects"].keys() == set(OWN.aspects)
    assert sum(map(sum, found["confusion"])) == len(rows)
    assert found["error_count"] == len(rows) - np.trace(found["confusion"])
    assert all(one["label"] != one["predicted"] for one in found["errors"])
    assert html.escape(found["errors"][0]["text"]) in page


def test_model_card_has_the_scores_of_qacg_evaluate(small_data, tmp_path, capsys):
    folder = tmp_path / "model"
    assert main(["train", "--data", str(small_data), "--output", str(folder), *SMALL_FLAGS, "--max-steps=4"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(folder), "--data", str(small_data), "--json"]) == 0
    aspects = json.loads(capsys.readouterr().out)["breakdown"]["aspects"]
    card = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    start = next(place for place, line in enumerate(card) if line.startswith("| test: aspect"))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in card[start + 2 :]]
    rows = rows[: rows.index([])]
    expected = []
    for aspect, labels in aspects.items():
        for label, one in labels.items():
            if one["support"]:
                shares = (one[name] for name in ("precision", "recall", "f1"))
                cells = ["n/a" if share is None else f"{100 * share:.1f}" for share in shares]
                expected.append([aspect, label, *cells, str(one["support"])])
    assert rows == expected

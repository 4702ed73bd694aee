"""Texts of the training data that `qacg evaluate` recognises in the evaluated rows."""

import csv
import json

import pytest
from errors import raises
from qacg_models.cli import main
from qacg_models.runs import training_texts
from qacg_models.runs.training_texts import TEXTS_NAME, TrainingTexts, count_training_texts, write_training_texts

TEXTS = [f"text {number}" for number in range(100)]


def test_training_texts_differing_in_form_are_recognised(tmp_path):
    write_training_texts(tmp_path, ["The soup was  fine", "b"])
    found = count_training_texts(tmp_path, ["the soup was fine", "the soup", "c"])
    assert found == TrainingTexts(found=1, examined=3, evaluated=3)
    assert found.describe() == "1 of 3 texts was in the training data; the metrics on them are optimistic"


def test_training_texts_new_texts_are_counted(tmp_path):
    write_training_texts(tmp_path, TEXTS)
    assert count_training_texts(tmp_path, ["new"]).describe() == "0 of 1 text was in the training data"


def test_training_texts_above_the_limit_examine_a_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(training_texts, "MOST", 40)
    write_training_texts(tmp_path, TEXTS)
    assert (tmp_path / TEXTS_NAME).stat().st_size == 40 * 8
    same = count_training_texts(tmp_path, TEXTS).describe()
    assert same.startswith("40 of 40 texts (a sample of the 100 evaluated texts) were in the training data")
    assert count_training_texts(tmp_path, [f"new {text}" for text in TEXTS]).found == 0


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b""])
def test_training_texts_damaged_file_raises(tmp_path, damage):
    write_training_texts(tmp_path, TEXTS)
    path = tmp_path / TEXTS_NAME
    path.write_bytes(damage(path.read_bytes()))
    with raises("ModelFolderError: train_texts.bin: is damaged; delete it"):
        count_training_texts(tmp_path, TEXTS)


def test_evaluate_recognises_training_texts(small_data, tmp_path, capsys):
    model = tmp_path / "model"
    sizes = [
        "--set",
        "layers=1",
        "--set",
        "hidden_size=16",
        "--set",
        "heads=2",
        "--max-steps",
        "1",
        "--from",
        "scratch",
    ]
    assert main(["train", "--data", str(small_data), "--output", str(model), *sizes]) == 0
    with (small_data / "train.tsv").open(newline="") as handle:
        rows = list(csv.reader(handle, delimiter="\t"))
    changed = tmp_path / "other.tsv"
    with changed.open("w", newline="") as handle:
        csv.writer(handle, delimiter="\t").writerows(rows[:-12])
    capsys.readouterr()
    evaluate = ["evaluate", str(model), "--data"]
    assert main([*evaluate, str(changed)]) == 0
    assert " texts were in the training data; the metrics on them are optimistic" in capsys.readouterr().out
    assert main([*evaluate, str(small_data)]) == 0
    assert "\n0 of " in capsys.readouterr().out
    assert main([*evaluate, str(small_data), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)["training_texts"]
    assert counts["found"] == 0 and counts["examined"] == counts["evaluated"] > 0
    (model / TEXTS_NAME).unlink()
    assert main([*evaluate, str(small_data)]) == 0
    assert "in the training data" not in capsys.readouterr().out
    assert main([*evaluate, str(small_data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["training_texts"] is None

"""The record of a training, and one line with file and field for every invalid record."""

import copy
import json
import math
from dataclasses import replace

import pytest
from errors import raises
from qacg_models.errors import InputError, ModelFolderError
from qacg_models.sentiment.dataset import file_digest
from qacg_models.sentiment.example import SENTIHOOD
from qacg_models.sentiment.options import TrainingOptions
from qacg_models.sentiment.record import (
    RECORD_NAME,
    SplitFile,
    TrainingRecord,
    read_record,
    write_record,
)
from qacg_models.sentiment.report.tables import stored_split
from untrained import OWN, record_of

RECORD = record_of(OWN, [""], TrainingOptions().resolved())
CONTENT = json.loads(json.dumps(RECORD.to_json()))
# Fields at every depth: of objects, lists, unions and objects with free keys.
FIELDS = [
    *(("task",), ("task", "labels", 0), ("targets", 0), ("max_length",), ("options", "seed"), ("options", "minutes")),
    *(("options", "precision"), ("data_options", "wide"), ("data_options", "labels"), ("selected", "step")),
    *(("label_shares", 0), ("overlap", 0, 2), ("data", "dev", "rows"), ("warnings", 0, "examples", 0), ("loss", 0, 1)),
    *(("seconds",), ("versions", "torch"), ("machine",), ("written",), ("metrics", "dev", "accuracy")),
    *(("tfidf", "test", "undefined"), ("majority",), ("confusion", "dev", "food", 0, 0), ("bfloat16_agreement",)),
]


def changed(path, change):
    content = copy.deepcopy(CONTENT)
    inside = content
    for step in path[:-1]:
        inside = inside[step]
    change(inside, path[-1])
    return content


def written(path):
    """A path as errors print it: names after dots, indices in brackets."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def record_error(folder, content):
    """The error, after the file name, that reading a folder with this record raises."""
    (folder / RECORD_NAME).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ModelFolderError) as caught:
        read_record(folder)
    printed = str(caught.value)
    assert "\n" not in printed and printed.startswith(f"{folder}/{RECORD_NAME}: ")
    return printed.partition(f"{RECORD_NAME}: ")[2]


def test_record_round_trip_is_equal(tmp_path):
    write_record(tmp_path / RECORD_NAME, RECORD)
    assert read_record(tmp_path) == RECORD
    assert json.loads((tmp_path / RECORD_NAME).read_text()) == CONTENT


def test_record_keeps_undefined_metrics():
    silent = {"dev": replace(RECORD.metrics["dev"], aspect_f1=math.nan, undefined=("aspect_f1",))}
    plain = replace(RECORD, metrics=silent, tfidf=silent, majority=silent, confusion={}).to_json()
    assert plain["metrics"]["dev"]["aspect_f1"] is None
    back = TrainingRecord.from_json(json.loads(json.dumps(plain)))
    assert math.isnan(back.metrics["dev"].aspect_f1) and back.metrics["dev"].undefined == ("aspect_f1",)


@pytest.mark.parametrize("path", FIELDS, ids=written)
def test_record_field_missing_or_of_another_type_raises(path, tmp_path):
    def change(inside, name):
        inside[name] = [{"abacus": 7}] if isinstance(inside[name], str) else "abacus"

    printed = record_error(tmp_path, changed(path, change))
    assert printed.startswith(f"{written(path)}: expected ") and ", got " in printed
    if isinstance(path[-1], str) and path[0] not in ("versions", "options", "data_options", "bfloat16_agreement"):
        printed = record_error(tmp_path, changed(path, dict.pop))
        assert printed.startswith(written(path[:-1])) and f"lacks the field {path[-1]}" in printed


def test_record_without_a_later_option_has_its_default():
    content = changed(("options", "gradient_accumulation"), dict.pop)
    del content["data_options"]["quoting"]
    assert TrainingRecord.from_json(content) == RECORD


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("steps",), True, "steps: expected an integer, got True"),
        (("colour",), "red", "has colour, which this version does not support"),
        (("data", "dev", "colour"), "red", "has colour, which this version does not support"),
        (("seconds",), float("nan"), "seconds: expected a number, got nan"),
        (("commit",), 7, "commit: expected a text or null, got 7"),
        (("loss", 0), [1], "loss[0]: expected 2 values, got 1"),
        (("targets", 0), "hotel", "targets: expected one empty name, since the task has no targets, got ['hotel']"),
        (("label_shares",), [1.0], "label_shares: expected 3 shares, one for each label, got 1"),
        (("options", "model"), "albert", "options: model: expected one of "),
        (("task", "metrics"), "luck", "task: metrics: expected one of sentihood, semeval, classification, got 'luck'"),
    ],
)
def test_record_value_out_of_range_raises(path, value, expected, tmp_path):
    assert expected in record_error(tmp_path, changed(path, lambda inside, name: inside.__setitem__(name, value)))


def test_record_truncated_file_raises(tmp_path):
    text = json.dumps(CONTENT, indent=1)
    for length in range(0, len(text), 97):
        assert "is not JSON" in record_error(tmp_path, text[:length])
    for other in ("[]", "null", '"text"'):
        assert f"expected an object, got {json.loads(other)!r}" in record_error(tmp_path, other)
    assert "format: expected 1, got 8" in record_error(tmp_path, '{"format": 8}')


def test_record_errors_are_input_errors():
    assert issubclass(ModelFolderError, InputError) and issubclass(InputError, ValueError)
    sentihood = record_of(SENTIHOOD, ["location - 1"], TrainingOptions().resolved())
    for targets in ((), ("",), ("location - 1", "location - 1")):
        with raises("InputError: targets: expected distinct names, got"):
            replace(sentihood, targets=targets)


@pytest.mark.parametrize(
    ("rows", "split", "count", "expected"),
    [
        ({"train": 9, "dev": 3, "test": 3}, "test", 3, "test"),
        ({"train": 9, "dev": 3, "test": 3}, "dev", 3, "dev"),
        ({"train": 3, "dev": 3, "test": 3}, "train", 3, None),
        ({"train": 9, "dev": 3}, "dev", 4, None),
        ({"test": 3}, "reviews.csv", 3, "test"),
    ],
)
def test_stored_split_is_the_evaluated_one(rows, split, count, expected, tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_text("text")
    digest = file_digest(path)
    stored = replace(RECORD, data={name: SplitFile(size, digest) for name, size in rows.items()})
    assert stored_split(stored, [path], split, count) == expected

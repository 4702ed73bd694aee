"""The record of a training: read as it was written, and refused in one line that names the file and the field."""

import copy
import json
import math
from dataclasses import fields, replace

import pytest
from qacg_models.cli import main
from qacg_models.data.options import DataOptions
from qacg_models.data.task import SENTIHOOD
from qacg_models.errors import InputError, ModelFolderError
from qacg_models.runs.options import TrainingOptions
from qacg_models.runs.record import RECORD_NAME, TrainingRecord, read_record, write_record
from untrained import OWN, record_of

RECORD = record_of(OWN, OWN.aspects, TrainingOptions().resolved())
CONTENT = json.loads(json.dumps(RECORD.to_json()))
# Objects whose names are the writer's own: any may be missing, and of `machine` any value will do.
FREE = ("machine", "versions", "data", "metrics", "tfidf", "majority", "confusion")


def paths(content, before=()):
    """Every field of an object, of objects in it, and of what lies in its lists, as a tuple of names and indices."""
    for name, value in content.items() if isinstance(content, dict) else enumerate(content):
        here = (*before, name)
        yield here
        if isinstance(value, (dict, list)) and here[0] != "machine":
            yield from paths(value, here)


FIELDS = [path for path in paths(CONTENT) if path != ("format",)]
# None in this record, and a text in others.
TEXTS_OR_NONE = [
    field.name
    for kind in (TrainingOptions, DataOptions)
    for field in fields(kind)
    if field.metadata["kind"] is str and field.default is None
]
NEEDED = [
    path
    for path in FIELDS
    if isinstance(path[-1], str)
    and not (len(path) == 2 and path[0] in FREE)
    and not (len(path) > 1 and path[0] == "confusion")
]


def changed(path, change):
    content = copy.deepcopy(CONTENT)
    inside = content
    for step in path[:-1]:
        inside = inside[step]
    change(inside, path[-1])
    return content


def written(path):
    """A path as errors write it: names after points, indices in brackets."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def refusal(folder, content):
    """The one line that whoever reads a folder with this record gets."""
    (folder / RECORD_NAME).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ModelFolderError) as refused:
        read_record(folder)
    said = str(refused.value)
    assert "\n" not in said and said.startswith(f"{folder}/{RECORD_NAME}: ")
    return said.partition(f"{RECORD_NAME}: ")[2]


def test_a_command_says_the_line_alone(tmp_path, capsys):
    said = refusal(tmp_path, changed(("selected", "step"), dict.pop))
    assert main(["predict", str(tmp_path), "--text", "service is slow"]) == 2
    assert capsys.readouterr() == ("", f"qacg predict: {tmp_path}/{RECORD_NAME}: {said}\n")


def test_a_record_is_read_as_it_was_written(tmp_path):
    write_record(tmp_path / RECORD_NAME, RECORD)
    assert read_record(tmp_path) == RECORD
    assert json.loads((tmp_path / RECORD_NAME).read_text()) == CONTENT


def test_figures_that_could_not_be_taken_survive():
    silent = {"dev": replace(RECORD.metrics["dev"], aspect_f1=math.nan, undefined=("aspect_f1",))}
    plain = replace(RECORD, metrics=silent, tfidf=silent, majority=silent, confusion={}).to_json()
    assert plain["metrics"]["dev"]["aspect_f1"] is None
    back = TrainingRecord.from_json(json.loads(json.dumps(plain)))
    assert math.isnan(back.metrics["dev"].aspect_f1) and back.metrics["dev"].undefined == ("aspect_f1",)


def test_the_fields_are_all_there():
    assert len(FIELDS) > 100 and ("selected", "step") in FIELDS and ("options", "seed") in FIELDS
    assert ("metrics", "dev", "accuracy") in FIELDS and ("loss", 0, 1) in FIELDS


@pytest.mark.parametrize("path", NEEDED, ids=written)
def test_a_field_that_is_missing_is_named(path, tmp_path):
    said = refusal(tmp_path, changed(path, dict.pop))
    assert f"lacks {path[-1]}, so it is incomplete" in said
    assert said.startswith(written(path[:-1])), "and the object it is missing from"


@pytest.mark.parametrize("path", FIELDS, ids=written)
def test_a_field_of_another_type_is_named(path, tmp_path):
    def change(inside, name):
        inside[name] = [{"abacus": 7}] if isinstance(inside[name], str) else "abacus"
        if path[-1] in TEXTS_OR_NONE:
            inside[name] = 7

    said = refusal(tmp_path, changed(path, change))
    assert said.startswith(f"{written(path)}: expected ")
    assert ", got " in said


@pytest.mark.parametrize("path", NEEDED, ids=written)
def test_a_field_that_is_misspelt_is_named(path, tmp_path):
    said = refusal(tmp_path, changed(path, lambda inside, name: inside.update({f"{name}e": inside.pop(name)})))
    assert f"lacks {path[-1]}, so" in said


@pytest.mark.parametrize("inside", [(), ("task",), ("selected",), ("options",), ("data_options",), ("data", "dev")])
def test_record_with_an_unknown_field_names_it(inside, tmp_path):
    said = refusal(tmp_path, changed((*inside, "colour"), lambda part, name: part.update({name: "red"})))
    assert "has colour, which this version does not support" in said


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("steps",), True, "steps: expected an integer, got True"),
        (("steps",), 1.5, "steps: expected an integer, got 1.5"),
        (("seconds",), float("nan"), "seconds: expected a number, got nan"),
        (("commit",), 7, "commit: expected a text or null, got 7"),
        (("loss", 0), [1], "loss[0]: expected 2 values, got 1"),
        (("max_length",), 0, "max_length: expected 1 to "),
        (("contexts", 1), "fod", "contexts: context: expected one of"),
        (("label_shares",), [1.0], "label_shares: expected 3 shares, one for each label, got 1"),
        (("options", "model"), "albert", "options: model: expected one of "),
        (("task", "metrics"), "luck", "task: metrics: expected one of sentihood, semeval, classification, got 'luck'"),
        (
            ("confusion", "train"),
            {},
            "confusion: expected the splits of metrics, ['dev', 'test'], got ['dev', 'test', ",
        ),
        (("confusion", "dev", "food"), [[1]], "confusion.dev.food: expected 3 rows of 3 numbers"),
        (("majority",), {}, "majority: expected the splits of metrics, ['dev', 'test'], got []"),
    ],
)
def test_a_value_out_of_its_limits_is_named(path, value, expected, tmp_path):
    assert expected in refusal(tmp_path, changed(path, lambda inside, name: inside.__setitem__(name, value)))


def test_a_record_that_is_cut_off_is_said_to_be(tmp_path):
    text = json.dumps(CONTENT, indent=1)
    for length in range(0, len(text), 97):
        assert "is not JSON" in refusal(tmp_path, text[:length])
    for other in ("[]", "null", '"text"', '{"format": 8}'):
        assert "format: expected 2, got " in refusal(tmp_path, other)


def test_the_errors_are_those_of_input():
    assert issubclass(ModelFolderError, InputError) and issubclass(InputError, ValueError)
    sentihood = record_of(SENTIHOOD, ["location - 1 - price"], TrainingOptions().resolved())
    with pytest.raises(InputError, match=r"contexts: context: expected .*, got 'price'"):
        replace(sentihood, contexts=("price",))

"""Invalid text and endless files: one line with file, line and the expected value or the limit."""

import csv
import json
import os
import subprocess
import sys

import pytest
from commands import fails
from errors import raises
from model_cases import SIZES
from qacg_models import (
    AspectSentiment,
    BertSumConfig,
    PlainBertConfig,
    QACGBertConfig,
)
from qacg_models.errors import InputError
from qacg_models.sentiment.columns import Columns, natural_key
from qacg_models.sentiment.record import read_run_file
from qacg_models.sentiment.tables import json_values, read_table
from qacg_models.tasks import encode_document, windows
from qacg_models.utils import text as plain_text
from qacg_models.utils.fields import read_json_as
from qacg_models.utils.text import parse_json, parse_json_at
from untrained import write_model

DEEP = "[" * 100_000
LONG = "7" * 5000
HALF = r"\ud83d"
ROW = {"text": "good food", "aspect": "food", "label": "good"}
# An invalid JSON value, and a part of the error.
BAD_VALUES = {
    "a high surrogate": (f'"so {HALF}"', r"the escape \ud83d is half a character"),
    "a low surrogate": (r'"so \uDE00"', r"the escape \uDE00 is half a character"),
    "in the wrong order": (r'"so \ude00\ud83d"', r"the escape \ude00 is half a character"),
    "a long number": (LONG, "a number has more than 4300 digits"),
    "deep lists": (DEEP, "nested too deep"),
    "NaN": ("NaN", "has an empty 'text'"),
    "an infinite number": ("1e999", "'text': expected a text, a finite number or a boolean, got inf"),
}


def jsonl(path, *texts):
    path.write_text("".join(f'{{"text": {text}, "aspect": "food", "label": "good"}}\n' for text in texts))
    return path


@pytest.mark.parametrize("value, part", BAD_VALUES.values(), ids=BAD_VALUES)
def test_json_odd_values_are_reported(value, part, model, tmp_path, capsys):
    path = jsonl(tmp_path / "rows.jsonl", '"fine"', value)
    fails(capsys, ["predict", model, "--input", path], f"{path}:2: ", part)
    fails(capsys, ["train", "--data", path, "--output", tmp_path / "m"], f"{path}:2: ", part)
    path = tmp_path / "rows.json"
    path.write_text(f'[{json.dumps(ROW)},\n{{"text": {value}, "aspect": "food", "label": "good"}}]')
    fails(capsys, ["train", "--data", path, "--output", tmp_path / "m"], f"{path}:2: ", part)


def test_json_escapes_of_characters_are_read(tmp_path):
    smile = r'"\ud83d\ude00 \\ud83d \u00e9"'
    path = jsonl(tmp_path / "rows.jsonl", smile, "7", '"' + "x" * 200_000 + '"')
    texts = read_table(path, Columns())["text"].tolist()
    assert texts == ["\U0001f600 \\ud83d \u00e9", "7", "x" * 200_000]
    assert parse_json(' {"a": [1, NaN]} ')["a"][0] == 1
    assert parse_json_at('7, "b"', 3) == ("b", 6)
    with pytest.raises(json.JSONDecodeError, match="more text follows the value: line 2 column 1"):
        parse_json("{}\n{}")
    with pytest.raises(json.JSONDecodeError, match=r"half a character.*: line 2 column 4"):
        parse_json('["a",\n  "\\ud83d\\n"]')


def test_text_not_in_utf8_raises(model, capsys):
    half = os.fsdecode(b"caf\xe9")
    fails(capsys, ["predict", model, "--text", half], "argument 4: expected text in UTF-8, got 'caf\\udce9'.")
    fails(capsys, ["train", "--data", half, "--output", "m"], "argument 3")
    command = [sys.executable, "-m", "qacg_models.cli", "predict", str(model), "--text", b"caf\xe9"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == "qacg: argument 4: expected text in UTF-8, got 'caf\\udce9'.\n"
    ask = AspectSentiment.from_pretrained(model)
    with pytest.raises(InputError, match=r"text: expected text that UTF-8 can encode, got \\udce9"):
        ask(half)
    tokenizer = ask.trained.tokenizer
    with pytest.raises(InputError, match=r"context: expected text that UTF-8 can encode, got \\udce9"):
        windows("what?", half, tokenizer, 40, 4)
    with pytest.raises(InputError, match=r"sentences\[1\]: expected text that UTF-8 can encode, got \\udce9"):
        encode_document(["one", half], tokenizer, 40)


def test_csv_long_field_names_the_limit(model, tmp_path, capsys):
    path = tmp_path / "rows.csv"
    path.write_text(f'text,label\nshort,a\n"{"x" * 140_000}",b\n')
    parts = (f"{path}:3: ", "at most 131,072 characters", "a quotation mark that is not closed", "JSONL")
    fails(capsys, ["predict", model, "--input", path], *parts)
    path.write_text('text,label\n"open, ' + "word\n" * 40_000)
    with raises("DataError: rows.csv:2: expected fields of at most 131,072 characters"):
        read_table(path, Columns(aspect=None, label=None))
    assert csv.field_size_limit() == 131_072  # the global limit is unchanged


def test_natural_key_sorts_thousands_of_digits(tmp_path):
    names = ["a10", "a2", "a" + LONG, "a" + "0" * 5000 + "3", "b", "a"]
    assert sorted(names, key=natural_key) == ["a", "a2", "a" + "0" * 5000 + "3", "a10", "a" + LONG, "b"]
    with raises("DataError: rows.json:2: is not JSON (a number has more than"):
        (tmp_path / "rows.json").write_text(f"[1,\n{LONG}]")
        list(json_values(tmp_path / "rows.json"))


@pytest.mark.parametrize("name", ["config.json", "training.json"])
def test_model_files_nested_too_deep_raise(name, tmp_path, capsys):
    folder = write_model(tmp_path / "model")
    for text, part in ((DEEP, "nested too deep"), (LONG, "more than 4300 digits"), (f'{{"a":\n"{HALF}"}}', "line 2")):
        (folder / name).write_text(text)
        fails(capsys, ["predict", folder, "--text", "good"], name, part)


def test_convert_bad_index_or_header_raises(model, tmp_path, capsys):
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    index, new = tmp_path / "model.safetensors.index.json", tmp_path / "new"
    index.write_text(json.dumps({"weight_map": {"a": index.name}}))
    fails(capsys, ["convert", tmp_path, new], f"{index}: expected a file that ends in .safetensors")
    index.write_text('{"weight_map": ' + DEEP)
    fails(capsys, ["convert", tmp_path, new], f"{index}: is not JSON", "nested too deep")
    index.unlink()
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(len(DEEP).to_bytes(8, "little") + DEEP.encode())
    fails(capsys, ["convert", tmp_path, new], f"{weights}: is damaged")
    assert not new.exists()


@pytest.mark.parametrize("dtype", ["float7", "load", "int64", "torch.float32", 7])
def test_config_unknown_dtype_raises(dtype, model, tmp_path, capsys):
    expected = f"expected a floating-point dtype of torch, such as 'float32', got {dtype!r}"
    for config_class in (PlainBertConfig, QACGBertConfig):
        for field in ("dtype", "torch_dtype"):
            with pytest.raises(ValueError, match=f"^{field}: {expected}"):
                config_class.from_dict({**SIZES, field: dtype})
    with raises(f"ValueError: encoder.dtype: {expected}"):
        BertSumConfig(encoder={"model_type": "bert", "dtype": dtype})
    folder = write_model(tmp_path / "model")
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | {"dtype": dtype}))
    fails(capsys, ["convert", folder, tmp_path / "new"], f"config.json: dtype: {expected}")
    fails(capsys, ["predict", folder, "--text", "good"], f"config.json: dtype: {expected}")


def test_convert_bad_model_type_raises(tmp_path, capsys):
    folder = write_model(tmp_path / "model")
    fields = json.loads((folder / "config.json").read_text())
    for part, changed in {
        "model_type: expected one of bert, ": {"model_type": []},
        "architectures: expected a list of names, got 7": {"architectures": 7},
    }.items():
        (folder / "config.json").write_text(json.dumps(fields | changed))
        fails(capsys, ["convert", folder, tmp_path / "new"], f"config.json: {part}")


def test_run_file_odd_values_raise(tmp_path):
    path = tmp_path / "run.yaml"
    for text, part in (
        (f"layers: {LONG}", "cannot be read"),
        ("data: 2020-99-99", "cannot be read"),
        (rf'aspects: [a, "b{HALF}"]', r"aspects: expected text that UTF-8 can encode, got \\ud83d"),
        ("? [1]\n: 2", "cannot be read|unknown choice"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=rf"run\.yaml: .*({part})"):
            read_run_file(path)


def test_endless_files_raise(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_text, "MOST_FILE_BYTES", 1 << 20)
    for name in ("run.json", "run.yaml"):
        (tmp_path / name).symlink_to("/dev/zero")
    with raises("InputError: run.json: cannot be read (expected at most 1 MiB, got a larger file)"):
        read_json_as(object, tmp_path / "run.json")
    with raises("InputError: run.yaml: cannot be read as YAML or JSON ...expected at most 1 MiB"):
        read_run_file(tmp_path / "run.yaml")

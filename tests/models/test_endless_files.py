"""Endless or oversized files raise an error that names the limit before memory is full."""

import resource

import pytest
from errors import raises
from qacg_models.cli import main
from qacg_models.data import lines, load_data
from qacg_models.data.columns import Columns
from qacg_models.data.example import DataError
from qacg_models.data.requests import BINARY, FORMATS, read_requests
from qacg_models.runs.run_config import read_run_file
from qacg_models.utils import plain_text
from qacg_models.utils.json_fields import read_json_as

LINE = r":1: expected lines of at most 16 MiB, got a longer one; is this a text file"


@pytest.fixture
def endless(tmp_path):
    """Makes an endless file."""

    def make(name):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.symlink_to("/dev/zero")
        return path

    return make


@pytest.mark.parametrize("data_format", [name for name in FORMATS if name not in BINARY])
def test_read_requests_endless_line_raises(endless, data_format):
    path = endless(f"texts.{data_format}")
    with pytest.raises(DataError, match=LINE):
        next(read_requests(path, data_format, Columns(aspect=None, label=None)))


@pytest.mark.parametrize("name", ["train.tsv", "train_NLI_M.csv", "train.csv", "train.jsonl"])
def test_load_data_endless_line_raises(tmp_path, name):
    with (tmp_path / name).open("wb") as handle:
        handle.truncate(17 << 20)
    with pytest.raises(DataError, match=LINE):
        load_data(tmp_path, optional=("dev", "test"))


def test_suggest_of_an_endless_file_prints_one_line(endless, tmp_path, capsys):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert main(["suggest", "--input", str(endless("texts.txt")), "--output", str(tmp_path / "sheet.csv")]) == 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10, "KiB"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("qacg suggest: ") and "at most 16 MiB" in line


@pytest.mark.parametrize("text", ["[" + "1, " * 700, "[" + "1,\n" * 700])
def test_json_array_too_large_raises(tmp_path, monkeypatch, text):
    path = tmp_path / "train.json"
    path.write_text(text)
    monkeypatch.setattr(lines, "MOST_FILE_BYTES", 2 << 10)
    with pytest.raises(DataError, match=r"expected (lines|a JSON array) of at most 0 MiB"):
        list(lines.json_array(path))


def test_numbered_lines_limit_is_inclusive(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MOST_LINE_BYTES", 5)
    (tmp_path / "a.txt").write_text("1234\n12345\n")
    found = lines.numbered_lines(tmp_path / "a.txt")
    assert next(found) == (1, "1234")
    with raises("DataError: a.txt:2: "):
        next(found)


def test_read_json_too_large_file_raises(endless, monkeypatch):
    monkeypatch.setattr(plain_text, "MOST_FILE_BYTES", 1 << 20)
    path = endless("run.json")
    with raises("InputError: run.json: cannot be read (expected at most 1 MiB, got a larger file)"):
        read_json_as(object, path)


def test_run_file_too_large_raises(endless, monkeypatch):
    monkeypatch.setattr(plain_text, "MOST_FILE_BYTES", 1 << 20)
    with raises("InputError: run.yaml: cannot be read as YAML or JSON ...expected at most 1 MiB"):
        read_run_file(endless("run.yaml"))

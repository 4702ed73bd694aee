"""The check with other versions: which Pythons it takes, and the table that it ends in."""

import argparse
import sys
from collections import Counter
from pathlib import Path

import check_versions
import pytest


def a_python(folder, version):
    """A program that answers as a Python of this version."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"python{'.'.join(version.split('.')[:2])}"
    program.write_text(f"#!/bin/sh\necho {version.replace('.', ' ')}\n")
    program.chmod(0o755)
    return program


def test_pythons_of_the_path_of_pyenv_and_those_that_are_named_from_the_oldest_claimed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    too_old = a_python(tmp_path / "path", "3.9.2")
    wanted = [
        a_python(tmp_path / "pyenv/versions/3.10.4/bin", "3.10.4"),
        a_python(tmp_path / "path", "3.88.1"),
        a_python(tmp_path / "named", "3.99.0"),
    ]
    broken = tmp_path / "path/python3.77"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    found = list(check_versions.pythons([wanted[-1]]).values())
    assert [p for p in found if p != Path(sys.executable)] == wanted
    assert Path(sys.executable) in found and too_old not in found


def test_what_is_no_python_is_refused(tmp_path):
    for name in ("nowhere", tmp_path):
        with pytest.raises(argparse.ArgumentTypeError, match=r"got '.*', wanted a Python with venv and ensurepip"):
            check_versions.interpreter(str(name))
    assert check_versions.interpreter(sys.executable) == Path(sys.executable)


def test_the_table_says_what_ran_with_what():
    lines = [
        check_versions.Line("oldest", ["3.10.13", "2.10.0", "5.12.0", "3.6.0"], Counter(passed=463, skipped=56), 0),
        check_versions.Line("newest", ["3.14.8", "2.15.0", "5.23.0", "none"], Counter(passed=9, failed=2), 1),
    ]
    head, *rows = [line.split() for line in check_versions.table(lines).splitlines()]
    assert head == ["versions", "Python", "torch", "transformers", "triton", "passed", "failed", "skipped"]
    assert rows == [
        ["oldest", "3.10.13", "2.10.0", "5.12.0", "3.6.0", "463", "0", "56"],
        ["newest", "3.14.8", "2.15.0", "5.23.0", "none", "9", "2", "0"],
    ]


def test_the_oldest_versions_are_those_that_are_claimed():
    claimed = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    torch, transformers = check_versions.LINES["oldest"]
    assert f'"{torch.removesuffix(".0").replace("==", ">=")}"' in claimed
    assert f'"{transformers.removesuffix(".0").replace("==", ">=")},<6"' in claimed
    assert f'requires-python = ">={".".join(map(str, check_versions.OLDEST_PYTHON))}"' in claimed

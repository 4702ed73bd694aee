"""The check with other versions: interpreters, requirements, commands and the table."""

import argparse
import os
import shlex
import sys
import zipfile
from collections import Counter
from pathlib import Path

import check_versions
import pytest
from qacg_models.cli import program


def a_python(folder, version):
    """A program that prints the version of a Python."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"python{'.'.join(version.split('.')[:2])}"
    program.write_text(f"#!/bin/sh\necho {version.replace('.', ' ')}\n")
    program.chmod(0o755)
    return program


def test_pythons_are_found_on_path_and_in_pyenv(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    too_old = a_python(tmp_path / "path", "3.9.2")
    expected = [
        a_python(tmp_path / "pyenv/versions/3.10.4/bin", "3.10.4"),
        a_python(tmp_path / "path", "3.88.1"),
        a_python(tmp_path / "named", "3.99.0"),
    ]
    broken = tmp_path / "path/python3.77"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    found = list(check_versions.pythons([expected[-1]]).values())
    assert [p for p in found if p != Path(sys.executable)] == expected
    assert Path(sys.executable) in found
    assert too_old not in found


def test_path_that_is_no_python_raises(tmp_path):
    for name in ("nowhere", tmp_path):
        with pytest.raises(argparse.ArgumentTypeError, match=r"expected a Python with venv and ensurepip, got '.*'"):
            check_versions.interpreter(str(name))
    assert check_versions.interpreter(sys.executable) == Path(sys.executable)


def test_table_has_versions_and_counts():
    lines = [
        check_versions.Line(
            "oldest", ["3.10.13", "2.10.0", "5.12.0", "1.3.0", "3.6.0"], [], Counter(passed=463, skipped=56), 0
        ),
        check_versions.Line(
            "newest", ["3.14.8", "2.15.0", "5.23.0", "1.15.0", "none"], ["info"], Counter(passed=9, failed=2), 1
        ),
    ]
    head, *rows = [line.split() for line in check_versions.table(lines).splitlines()]
    total = len(check_versions.COMMANDS)
    outcomes = ["commands", "passed", "failed", "skipped"]
    assert head == ["versions", "Python", "torch", "transformers", "accelerate", "triton", *outcomes]
    assert rows == [
        ["oldest", "3.10.13", "2.10.0", "5.12.0", "1.3.0", "3.6.0", f"{total}/{total}", "463", "0", "56"],
        ["newest", "3.14.8", "2.15.0", "5.23.0", "1.15.0", "none", f"{total - 1}/{total}", "9", "2", "0"],
    ]


def test_commands_are_accepted_by_the_program(monkeypatch):
    """Each subcommand but `demo`, which trains for minutes, with flags that the program accepts."""
    run = []
    monkeypatch.setattr(program, "check_dependencies", lambda: None)
    monkeypatch.setattr(program, "load_libraries", lambda: None)
    for name, command in program.COMMANDS.items():
        monkeypatch.setattr(command, "run", lambda arguments, name=name: run.append(name) or 0)
    for command in check_versions.COMMANDS:
        assert program.main(shlex.split(command)) == 0
    assert set(run) == set(program.COMMANDS) - {"demo"}


def test_failed_commands_returns_and_prints_failures(tmp_path, capsys):
    qacg = tmp_path / "qacg"
    qacg.write_text('#!/bin/sh\ntest "$1" != export || { echo no exporter >&2; exit 1; }\n')
    qacg.chmod(0o755)
    failed = check_versions.failed_commands(tmp_path / "python", tmp_path / "commands", dict(os.environ))
    assert failed == [command for command in check_versions.COMMANDS if command.startswith("export ")]
    assert capsys.readouterr().out.count("no exporter") == len(failed)


def test_inputs_have_labels_and_texts(tmp_path):
    check_versions.write_inputs(tmp_path)
    reviews, new = ((tmp_path / f"{name}.csv").read_text().splitlines() for name in ("reviews", "new"))
    assert reviews[0] == "review,topic,verdict"
    assert len(set(reviews)) == 121
    assert new[0] == "review"
    assert len(set(new)) == 61


def test_requirements_are_those_of_the_chosen_extras(tmp_path):
    wheel = tmp_path / "a-1.whl"
    lines = ["qacg-kernels==1", "torch>=2", 'onnx>=1; extra == "onnx"', 'ruff; extra == "test"']
    lines.append('triton; platform_system == "Linux" and extra == "onnx"')
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a-1.dist-info/METADATA", "".join(f"Requires-Dist: {line}\n" for line in lines))
    found = check_versions.requirements(wheel, ("onnx",))
    assert found == ["torch>=2", "onnx>=1", 'triton; platform_system == "Linux"']
    assert check_versions.requirements(wheel, ()) == ["torch>=2"]


def test_oldest_python_is_that_of_the_metadata():
    claimed = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    assert f'requires-python = ">={".".join(map(str, check_versions.OLDEST_PYTHON))}"' in claimed

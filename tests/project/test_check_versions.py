"""The check with other versions: interpreters, requirements, commands and the table."""

import shlex
import zipfile
from pathlib import Path

import check_versions
from qacg_models.cli import program


def test_commands_are_accepted_by_the_program(monkeypatch):
    """Each subcommand but `demo`, which trains for minutes, with flags that the program accepts."""
    run = []
    monkeypatch.setattr(program, "load_libraries", lambda: None)
    for name, command in program.COMMANDS.items():
        monkeypatch.setattr(command, "run", lambda arguments, name=name: run.append(name) or 0)
    for command in check_versions.COMMANDS:
        assert program.main(shlex.split(command)) == 0
    assert set(run) == set(program.COMMANDS) - {"demo"}


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

"""The program `qacg`, and these tests, without packages that they require."""

import importlib.util
import re
import shlex

import check_versions
import pytest
from processes import ROOT, run_python
from qacg_models.cli import process, program

IMPORTED_AS = {"scikit-learn": "sklearn", "pyyaml": "yaml", "lazy-loader": "lazy_loader"}
COMMANDS = [*(command for command in check_versions.COMMANDS if command != "info"), "demo"]


def listed(file, name):
    """The modules of other projects' packages in a list of requirements."""
    requirements = re.search(rf"^ *{name} ?= ?\[(.*?)\],?$", (ROOT / file).read_text(), re.MULTILINE | re.DOTALL)[1]
    packages = re.findall(r'"([a-z0-9-]+)', requirements)
    return [IMPORTED_AS.get(package, package) for package in packages if package != "qacg-kernels"]


def test_dependencies_are_those_of_setup():
    assert list(process.DEPENDENCIES) == listed("python/setup.py", "install_requires")


@pytest.mark.parametrize("command", COMMANDS)
def test_command_without_dependencies_prints_one_line(command, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("tqdm", "yaml") else object())
    assert program.main(shlex.split(command)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"qacg {command.split()[0]}: dependencies of qacg-models are not installed: tqdm, yaml.")
    assert "`pip install . ./python`" in line


def test_info_without_dependencies_runs(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(program.info, "run", lambda arguments: 0)
    assert program.main(["info"]) == 0


def test_commands_of_the_check_of_versions_are_accepted(monkeypatch):
    """`make test-versions` runs each subcommand but `demo`, which trains for minutes, with these flags."""
    run = []
    monkeypatch.setattr(program, "check_dependencies", lambda: None)
    monkeypatch.setattr(program, "load_libraries", lambda: None)
    for name, command in program.COMMANDS.items():
        monkeypatch.setattr(command, "run", lambda arguments, name=name: run.append(name) or 0)
    for command in check_versions.COMMANDS:
        assert program.main(shlex.split(command)) == 0
    assert set(run) == set(program.COMMANDS) - {"demo"}


@pytest.mark.full
def test_operator_tests_without_transformers_are_collected():
    code = (
        "import sys, pytest\n"
        "sys.modules.update(dict.fromkeys(('qacg_models', 'transformers')))\n"
        "sys.exit(pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider', '-m', '', 'tests/kernels']))"
    )
    assert "tests/kernels/test_dropout.py" in run_python("-c", code).stdout

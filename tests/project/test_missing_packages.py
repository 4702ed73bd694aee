"""The program `qacg`, and these tests, without packages that they require."""

import importlib.util
import re
import shlex

import check_versions
import optional_packages
import pytest
from processes import ROOT, SUPPORT, run_python
from qacg_models.cli import libraries, program

IMPORTED_AS = {"scikit-learn": "sklearn", "pyyaml": "yaml", "lazy-loader": "lazy_loader"}
COMMANDS = [*(command for command in check_versions.COMMANDS if command != "info"), "demo"]


def listed(file, name):
    """The modules of other projects' packages in a list of requirements."""
    requirements = re.search(rf"^ *{name} ?= ?\[(.*?)\],?$", (ROOT / file).read_text(), re.MULTILINE | re.DOTALL)[1]
    packages = re.findall(r'"([a-z0-9-]+)', requirements)
    return [IMPORTED_AS.get(package, package) for package in packages if package != "qacg-kernels"]


def test_dependencies_are_those_of_setup():
    assert list(libraries.DEPENDENCIES) == listed("python/setup.py", "install_requires")


def test_optional_packages_cover_dependencies_and_extras():
    programs = {"pytest", "pytest-benchmark", "pytest-xdist", "ruff", "clang-format"}  # not imported by tests
    required = {*listed("python/setup.py", "install_requires"), *listed("pyproject.toml", "test")}
    for extra in ("tensorboard", "onnx", "int8", "test"):
        required |= set(listed("python/pyproject.toml", extra))
    assert required - programs <= optional_packages.OPTIONAL


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


def test_pytest_skips_what_requires_a_missing_package(tmp_path):
    (tmp_path / "conftest.py").write_text(
        'import sys\n\npytest_plugins = ["optional_packages"]\nsys.modules.update({"yaml": None, "tomllib": None})\n'
    )
    (tmp_path / "test_module.py").write_text("import yaml.nodes\n\ndef test_a():\n    pass\n")
    (tmp_path / "test_call.py").write_text("def test_b():\n    import yaml\n\ndef test_c():\n    import tomllib\n")
    (tmp_path / "test_other.py").write_text("def test_d():\n    pass\n")
    command = ("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rs", "--rootdir", tmp_path)
    output = run_python(*command, cwd=tmp_path, status=1, paths=(SUPPORT,)).stdout
    assert "1 failed, 1 passed, 2 skipped" in output
    assert output.count("yaml is not installed") == 2
    assert "_ test_c _" in output

"""What happens where packages of the extras are not installed: in the program `qacg`, and in these tests."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import check_versions
import optional_packages
import pytest
from qacg_models.cli import libraries, program

ROOT = Path(__file__).resolve().parents[2]
IMPORTED_AS = {"scikit-learn": "sklearn", "pyyaml": "yaml"}
COMMANDS = [*(command for command in check_versions.COMMANDS if command != "info"), "demo"]


def extra(name):
    """What an extra's packages are imported as."""
    listed = re.search(rf"^{name} = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)[1]
    packages = re.findall(r'"([a-z-]+)', listed)
    return [IMPORTED_AS.get(package, package) for package in packages]


def test_models_extra_is_that_of_pyproject():
    assert list(libraries.MODELS_EXTRA) == extra("models")


def test_optional_packages_cover_the_extras():
    programs = {"pytest", "pytest-benchmark", "pytest-xdist", "ruff", "clang-format"}  # which no test imports
    required = {name for names in ("models", "tensorboard", "onnx", "int8", "test") for name in extra(names)}
    assert required - programs <= optional_packages.OPTIONAL


@pytest.mark.parametrize("command", COMMANDS)
def test_command_without_the_extra_prints_one_line(command, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("tqdm", "yaml") else object())
    assert program.main(shlex.split(command)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f'qacg {command.split()[0]}: needs the extra "models" (tqdm, yaml not installed): pip install'
    )
    assert '".[models]"' in line


def test_info_without_the_extra_runs(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(program.info, "run", lambda arguments: 0)
    assert program.main(["info"]) == 0


def test_load_libraries_hides_torchao_alone(monkeypatch):
    """scikit-learn, which transformers 5.12 to 5.20 import, requires scipy; accelerate and PIL are others' too."""
    found = {}

    def import_module(name):
        found.update({name: sys.modules.get(name, "visible") is not None for name in ("scipy", "PIL", "accelerate")})
        found["torchao"] = sys.modules.get("torchao", "visible") is not None

    for name in ("transformers.modeling_utils", "torchao"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(libraries, "importlib", SimpleNamespace(import_module=import_module))
    libraries.load_libraries(alone=True)
    assert found == {"scipy": True, "PIL": True, "accelerate": True, "torchao": False}
    assert sys.modules.get("torchao", "visible") == "visible"


def test_pytest_skips_what_requires_a_missing_package(tmp_path):
    (tmp_path / "conftest.py").write_text(
        'import sys\n\npytest_plugins = ["optional_packages"]\nsys.modules.update({"yaml": None, "tomllib": None})\n'
    )
    (tmp_path / "test_module.py").write_text("import yaml.nodes\n\ndef test_a():\n    pass\n")
    (tmp_path / "test_call.py").write_text("def test_b():\n    import yaml\n\ndef test_c():\n    import tomllib\n")
    (tmp_path / "test_other.py").write_text("def test_d():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rs", "--rootdir", tmp_path]
    variables = os.environ | {"PYTHONPATH": str(ROOT / "tests/support")}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed, 2 skipped" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("yaml is not installed") == 2
    assert "_ test_c _" in done.stdout

"""Child processes import nothing from the current folder."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import hub_kernel
import pytest
import wheels
from native import compilers
from qacg_models.utils.child_python import module_command

from benchmarks.cases import Case, Shape
from benchmarks.measure.memory import measure_in_process

ROOT = Path(__file__).resolve().parents[2]
PLANTED = ("torch", "queue", "random", "json", "runpy", "numpy", "setuptools")
PLANTED += ("qacg_models", "qacg_kernels", "benchmarks")


@pytest.fixture(autouse=True)
def planted(tmp_path, monkeypatch):
    """Makes a folder with planted modules the current one; returns the file that they write when they run."""
    folder, shown = tmp_path / "downloads", tmp_path / "shown"
    folder.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text(f"open({str(shown)!r}, 'a').write('{name} has run')\n")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    yield shown
    assert not shown.exists(), shown.read_text()


def test_planted_modules_run_with_a_bare_python_m(planted):
    subprocess.run([sys.executable, "-m", "json.tool", "--help"], check=False, capture_output=True)
    assert planted.exists(), "the planted modules do not run"
    planted.unlink()


def test_module_command_passes_arguments_and_status():
    command = module_command("json.tool", "--indent", 1, "-", "/dev/null")
    done = subprocess.run(command, input="[1]", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert subprocess.run(module_command("json.tool", "gone"), check=False, capture_output=True).returncode == 2


@pytest.mark.parametrize("name", ["qacg_models", "qacg_models.cli.program"])
def test_module_command_imports_the_same_packages(name):
    command = module_command("timeit", "-n1", "-r1", f"import {name} as found; print(found.__file__)")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == importlib.import_module(name).__file__


@pytest.mark.full
def test_child_that_measures_memory_imports_nothing_planted():
    assert measure_in_process(Case(Shape(1, 1, 8, 8)), "eager", 1).implementation == "eager"


def test_child_that_loads_the_hub_kernel_imports_nothing_planted(monkeypatch, tmp_path):
    monkeypatch.setattr(hub_kernel, "CALL", "import queue, random, json; print(queue.__file__)")
    assert hub_kernel.check_loads(tmp_path).endswith("queue.py")


def test_child_that_builds_imports_nothing_planted(tmp_path, planted):
    source, out = planted.parent / "downloads", tmp_path / "out"
    out.mkdir()
    (source / "pyproject.toml").write_text(
        '[project]\nname = "small"\nversion = "1"\n[tool.setuptools]\npackages = []\n'
    )
    assert wheels.build("sdist", source, out).name == "small-1.tar.gz"


def test_child_that_compiles_for_another_machine_is_isolated(monkeypatch):
    monkeypatch.setenv("QACG_BUILD_FOR", "manylinux_2_28_aarch64")
    assert compilers.compiler().startswith(f"{sys.executable} -I -m ziglang ")


def test_every_python_process_is_isolated():
    """Every command starts Python in isolated mode or with the path of a script, which exclude the current folder.

    `Path(sys.executable)` is in a text for the user, not in a command.
    """
    isolated = re.compile(r'"-I"| -I |sys\.executable, str\(_[A-Z]+\)|Path\(sys\.executable\)')
    sources = [
        path
        for name in ("qacg_kernels", "python", "benchmarks", "distributions")
        for path in (ROOT / name).rglob("*.py")
    ]
    starts = {
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sources
        if path.name != "child_python.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if "sys.executable" in line and not isolated.search(line)
    }
    assert not starts

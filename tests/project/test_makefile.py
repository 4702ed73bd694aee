"""Which libraries make has built, and when again, with a stand-in for Python that records the installations."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = """#!/bin/sh
test "$1" = setup.py || exit 0
echo "${QACG_BUILD_CUDA:-auto}" >> installations
rm -f qacg_kernels/_cuda.so
test "$QACG_BUILD_CUDA" != 1 || touch qacg_kernels/_cuda.so
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not on this machine")


@pytest.fixture
def installations(tmp_path):
    """Runs make for one goal; what the installations so far were asked for."""
    (tmp_path / "qacg_kernels").mkdir()
    (tmp_path / "python").mkdir()
    setup = ("pyproject.toml", "setup.py")
    for name in (*setup, *(f"python/{name}" for name in setup), "Makefile", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)  # as old as now: what is built next is newer
    python = tmp_path / "stand_in_python"
    python.write_text(PYTHON)
    python.chmod(0o755)

    def run(goal, **variables):
        environment = {n: v for n, v in os.environ.items() if n not in ("QACG_BUILD_CUDA", "MAKEFLAGS")} | variables
        command = ["make", goal, "VENV=", f"PYTHON={python}", "OUT=out"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        record = tmp_path / "installations"
        return record.read_text().split() if record.exists() else []

    return run


@pytest.mark.parametrize("goal", ["test-gpu", "bench-gpu", "sanitize-gpu"])
def test_what_is_for_a_gpu_asks_for_the_cuda_library_once(goal, installations):
    assert installations(goal) == ["1"]
    assert installations(goal) == ["1"]
    assert installations("lint") == ["1"], "the library that lint needs is there already"


def test_what_was_installed_without_it_is_installed_again(installations):
    assert installations("lint") == ["auto"]
    assert installations("test-gpu") == ["auto", "1"]
    assert installations("lint", QACG_BUILD_CUDA="0") == ["auto", "1"]


def test_a_library_that_another_installation_took_away_is_noticed(installations, tmp_path):
    installations("test-gpu")
    (tmp_path / "qacg_kernels/_cuda.so").unlink()
    assert installations("bench-gpu") == ["1", "1"]


def test_a_gpu_without_the_toolkit_can_do_without_the_library(installations):
    assert installations("test-gpu", QACG_BUILD_CUDA="0") == ["0"]

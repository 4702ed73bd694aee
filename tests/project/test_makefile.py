"""Targets of the Makefile, and its installations, which a stub of Python records."""

import os
import re
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
    """Runs make for a target; returns QACG_BUILD_CUDA of each installation so far."""
    (tmp_path / "qacg_kernels").mkdir()
    (tmp_path / "python").mkdir()
    setup = ("pyproject.toml", "setup.py")
    for name in (*setup, *(f"python/{name}" for name in setup), "Makefile", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / "stub_python"
    python.write_text(PYTHON)
    python.chmod(0o755)

    def run(goal, status=0, nvidia="Makefile", amd="", expected="NVIDIA or AMD", **variables):
        environment = {n: v for n, v in os.environ.items() if n not in ("QACG_BUILD_CUDA", "MAKEFLAGS")} | variables
        command = [
            "make",
            goal,
            "VENV=",
            f"PYTHON={python}",
            "OUT=out",
            f"NVIDIA_DEVICES={nvidia}",
            f"AMD_DEVICES={amd}",
        ]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        if status:
            assert f"make {goal}: expected an {expected} GPU, got none" in done.stdout
        record = tmp_path / "installations"
        return record.read_text().split() if record.exists() else []

    return run


@pytest.mark.parametrize("goal", ["test-gpu", "bench-gpu", "sanitize-gpu"])
def test_gpu_target_builds_the_cuda_library_once(goal, installations):
    assert installations(goal) == ["1"]
    assert installations(goal) == ["1"]
    assert installations("lint") == ["1"], "lint needs no other library"


@pytest.mark.parametrize("goal", ["test-gpu", "bench-gpu", "gpu-report"])
def test_gpu_target_without_gpu_installs_nothing(goal, installations):
    assert installations(goal, status=2, nvidia="no/such/device") == []


@pytest.mark.parametrize("amd", ["", "Makefile"])
def test_sanitize_gpu_without_nvidia_gpu_installs_nothing(amd, installations):
    assert installations("sanitize-gpu", status=2, nvidia="no/such/device", amd=amd, expected="NVIDIA") == []


def test_gpu_target_installs_again_with_the_library(installations):
    assert installations("lint") == ["auto"]
    assert installations("test-gpu") == ["auto", "1"]
    assert installations("lint", QACG_BUILD_CUDA="0") == ["auto", "1"]


def test_removed_cuda_library_is_built_again(installations, tmp_path):
    installations("test-gpu")
    (tmp_path / "qacg_kernels/_cuda.so").unlink()
    assert installations("bench-gpu") == ["1", "1"]


def test_gpu_target_runs_without_the_library_on_request(installations):
    assert installations("test-gpu", QACG_BUILD_CUDA="0") == ["0"]


def test_gpu_target_on_an_amd_gpu_builds_no_cuda_library(installations):
    for _ in range(2):
        assert installations("gpu-report", nvidia="no/such/device", amd="Makefile") == ["0"]


def test_selected_tests_exist():
    """pytest ignores a --deselect that matches nothing."""
    named = re.findall(r"(tests/\S+\.py)::(\w+)", (ROOT / "Makefile").read_text())
    assert len(named) == 2
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text()


def test_every_target_is_described_and_phony():
    text = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (help(?:.*\\\n)*.*)", text, re.MULTILINE)
    described = re.findall(r"^([a-z0-9-]+):[^#\n]*## ", text, re.MULTILINE)
    assert described == phony.replace("\\\n", " ").split()

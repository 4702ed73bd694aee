"""Compiled libraries that cannot be loaded: one line gives the reason, and the reference runs."""

import shutil

import pytest
import torch
from processes import ROOT, run_python

from qacg_kernels.utils import native_libraries


@pytest.mark.parametrize("version", ["2.9.1+cu128", "1.13.0"])
def test_torch_that_is_too_old_is_named(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    expected = f"torch: expected 2.10 or newer, got {version}. Run pip install 'torch>=2.10'"
    assert native_libraries.why_not_loadable() == expected


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0+cpu", "2.16.0a0+git12", "3.0.1"])
def test_newer_torch_is_accepted(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    assert native_libraries.why_not_loadable() is None


CALL = """
import torch, qacg_kernels
from qacg_kernels import info
row = torch.ones(1, 1, 2, 8)
print(qacg_kernels.quasi_attention(row, row, row, row, row, 0 * row[..., 0]).sum().item())
print(info.render(info.collect()))
"""


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("no library", "_cpu.so: "), ("unknown capability", "QACG_CPU_CAPABILITY: expected plain")],
)
def test_reference_runs_without_the_library(fault, reason, tmp_path):
    real = native_libraries.library("_cpu")
    if real is None:
        pytest.skip(native_libraries.why_not_built("_cpu"))
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    package = shutil.copytree(ROOT / "qacg_kernels", tmp_path / "qacg_kernels", ignore=ignored)
    if fault == "no library":  # as in a checkout without its large files
        (package / "_cpu.so").write_text("version https://git-lfs.github.com/spec/v1\n")
        variables = {}
    else:
        shutil.copy(real, package / "_cpu.so")
        variables = {"QACG_CPU_CAPABILITY": "sse9"}
    output = run_python("-c", CALL, cwd=tmp_path, paths=(tmp_path,), **variables).stdout
    assert float(output.split()[0]) == 16.0
    (line,) = [line for line in output.splitlines() if line.startswith("cpu library")]
    assert "not in use" in line
    assert reason in line

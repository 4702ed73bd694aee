"""The copy of PyTorch's headers in csrc/third_party, against which the CPU library is compiled."""

import re
import sys
from pathlib import Path

import pytest
import torch
import torch_headers
from native import choices, cpu, stable_abi
from torch.utils.cpp_extension import include_paths


def copied_headers():
    return {str(path.relative_to(torch_headers.COPY)) for path in torch_headers.COPY.rglob("*") if path.is_file()}


def version_of_copy():
    text = (torch_headers.COPY / "torch/headeronly/version.h").read_text()
    return tuple(int(re.search(rf"TORCH_VERSION_{part} (\d+)", text)[1]) for part in ("MAJOR", "MINOR", "PATCH"))


def test_copied_headers_are_those_that_csrc_includes():
    assert copied_headers() == torch_headers.required_headers(torch_headers.COPY)


def test_copied_headers_equal_those_of_the_same_torch():
    installed = tuple(map(int, torch.__version__.split("+")[0].split(".")))
    if installed != version_of_copy():
        pytest.skip(f"torch {torch.__version__} is installed; the copy is of {version_of_copy()}")
    for name in copied_headers():
        original = Path(include_paths()[0]) / name
        assert (torch_headers.COPY / name).read_bytes() == original.read_bytes(), name


def test_copied_headers_are_of_a_supported_torch():
    assert version_of_copy()[:2] >= stable_abi.OLDEST_TORCH


def test_cpu_library_without_torch_is_built(tmp_path, monkeypatch):
    """As in pip's isolated builds, which see no installed torch."""
    monkeypatch.delenv("QACG_BUILD_CPU", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    if reason := choices.why_no_library():
        pytest.skip(reason)
    assert choices.why_not_built(choices.LIBRARIES["_cpu"]) is None
    cpu.write_ninja(tmp_path / "build.ninja", tmp_path / "_cpu.so")
    text = (tmp_path / "build.ninja").read_text()
    assert f"-isystem{torch_headers.COPY}" in text
    assert "site-packages" not in text

"""The CUDA backend's own source, host half and kernels, run on the CPU by tests/cuda_emulator: the error rule holds."""

import sys
from pathlib import Path

import pytest
import torch
from cases import LARGE_SCORES, LAYOUT_CASES, SMALL, TILED
from judging import check

from qacg_kernels.backends import cuda

sys.path.insert(0, str(Path(__file__).parent / "cuda_emulator"))
import build

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def library():
    if build.compiler() is None:
        pytest.skip("no C++ compiler to build the emulator with")
    torch.ops.load_library(build.library())


@pytest.fixture(autouse=True)
def emulated(library, monkeypatch):
    """The backend is there and takes CPU tensors."""
    monkeypatch.setattr(cuda, "_missing", [])
    monkeypatch.setattr(cuda, "DEVICE", "cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", SMALL + LAYOUT_CASES, ids=lambda case: case.name)
def test_small(case, dtype):
    check(case, "cuda", dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", TILED + LARGE_SCORES, ids=lambda case: case.name)
def test_off_the_tile(case, dtype):
    check(case, "cuda", dtype, "cpu")

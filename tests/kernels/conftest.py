"""Fixtures of the operator tests: instruction sets and threads of the CPU, and the emulated CUDA library."""

import ctypes

import pytest
import torch
from full_members import members

from qacg_kernels.backends import cpu, cuda


@pytest.fixture(params=members(["native", "plain", "avx2", "avx512", "avx512_bf16"], fast=["native", "avx2"]))
def capability(request, monkeypatch):
    """An instruction set of the CPU kernels; "native" is the one that they choose."""
    if request.param != "native":
        if request.param not in cpu.CAPABILITIES:
            pytest.skip(f"{request.param} is for other processors")
        monkeypatch.setenv("QACG_CPU_CAPABILITY", request.param)
        if request.param not in cpu.instruction_sets().values():
            pytest.skip(f"this CPU does not have {request.param}")


@pytest.fixture
def set_threads():
    """Sets the number of torch's threads until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def emulated_library():
    """The CUDA backend's library, compiled for the emulator, with its operators loaded."""
    from cuda_emulator import build

    if build.compiler() is None:
        pytest.skip("no C++ compiler to build the emulator with")
    torch.ops.load_library(build.library())
    return ctypes.CDLL(str(build.library()))


@pytest.fixture
def emulate_gpu(emulated_library, monkeypatch):
    """Returns a function that makes the CUDA backends run CPU tensors on an emulated GPU until the end of the test."""

    def emulate(*gpus):
        # _ask sets all but the first.
        for name, value in (("_missing", []), ("_about", None), ("_gpus", ()), ("_versions", (0, 0))):
            monkeypatch.setattr(cuda, name, value)
        cuda._ask(emulated_library)
        monkeypatch.setattr(cuda, "_gpus", gpus)
        monkeypatch.setattr(cuda, "DEVICE", "cpu")
        return emulated_library

    return emulate

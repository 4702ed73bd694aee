"""The Hopper backend without a Hopper GPU: where it is, what it takes, and that "auto" uses it where it was
measured to be the fastest. Its kernel is in test_hopper_emulated.py.
"""

from types import SimpleNamespace

import faked_gpu
import pytest
import torch

import qacg_kernels as qk
from qacg_kernels.backends import cuda
from qacg_kernels.backends.cuda import hopper
from qacg_kernels.backends.protocol import outside_limits
from qacg_kernels.backends.triton.tile_tables import Choice


@pytest.fixture
def library(monkeypatch):
    """A CUDA library with code for some GPUs, on a machine with a GPU of some capability."""

    def make(capability, *gpus):
        monkeypatch.setattr(cuda, "missing", list)
        monkeypatch.setattr(cuda, "_gpus", gpus)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        for cached in (cuda.capability, hopper._unsupported_capability):
            cached.cache_clear()

    yield make
    for cached in (cuda.capability, hopper._unsupported_capability):
        cached.cache_clear()


def reasons(dtype=torch.bfloat16, head_dim=64):
    query = SimpleNamespace(device=torch.device("cuda:0"), dtype=dtype, shape=(1, 1, 1, head_dim))
    return outside_limits(hopper, SimpleNamespace(query=query, gate_form="row"))


def test_hopper_is_missing_without_the_cuda_library(monkeypatch):
    monkeypatch.setattr(cuda, "missing", lambda: ["no library"])
    assert hopper.missing() == ["no library"]


def test_library_without_code_names_the_build_command(library):
    library((9, 0), "8.0", "9.0", "10.0+PTX")
    (reason,) = hopper.missing()
    assert "no code for 9.0a" in reason
    assert "TORCH_CUDA_ARCH_LIST=9.0a QACG_BUILD_CUDA=1 pip install" in reason


def test_16_bits_on_a_hopper_gpu_are_supported(library):
    library((9, 0), "8.0", "9.0a")
    assert hopper.missing() == [] == reasons() == reasons(torch.float16, 128) == reasons(head_dim=33)
    assert "dtype: expected float16 or bfloat16, got float32" in reasons(torch.float32)[0]
    assert "head size: expected 1 to 128, got 129" in reasons(head_dim=129)[0]


@pytest.mark.parametrize("capability", [(8, 0), (10, 0), (12, 0)])
def test_other_gpus_are_unsupported(capability, library):
    library(capability, "8.0", "9.0a", "10.0+PTX")
    assert reasons() == [f"compute capability: expected 9.0, got {capability[0]}.0"]


@pytest.mark.parametrize("training", [False, True])
def test_auto_selects_hopper_only_if_measured_fastest(training, monkeypatch):
    faked_gpu.install(monkeypatch, names=("triton", "cuda", "hopper"))
    assert qk.explain(*faked_gpu.call(length=512, training=training)).selected == "triton"
    faked_gpu.install(monkeypatch, ("triton", "hopper"), (Choice(16, 64, training, 512, "hopper"),))
    told = qk.explain(*faked_gpu.call(length=512, training=training))
    assert told.selected == "hopper"
    assert told.passed_by["triton"].startswith("hopper is preferred")

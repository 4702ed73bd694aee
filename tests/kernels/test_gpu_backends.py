"""The GPU backends without a GPU: their limits, why they are missing, their notes, and when "auto" selects them."""

import ctypes
from types import SimpleNamespace

import pytest
import torch

from qacg_kernels.backends import cuda
from qacg_kernels.backends.dispatch import outside_limits


@pytest.fixture
def machine(monkeypatch):
    """Simulates a GPU of some capability, and a CUDA library with code for some GPUs."""

    def simulate(capability, *gpus):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(cuda, "missing", list)
        monkeypatch.setattr(cuda, "_gpus", gpus)
        cuda.capability.cache_clear()

    yield simulate
    cuda.capability.cache_clear()


def reasons(backend, dtype=torch.bfloat16, head_dim=64, device="cuda:0"):
    """Why a backend does not support a call."""
    query = SimpleNamespace(device=torch.device(device), dtype=dtype, shape=(1, 1, 1, head_dim))
    return outside_limits(backend, SimpleNamespace(query=query))


# The CUDA backend


@pytest.mark.parametrize(
    ("gpu", "capabilities", "others"),
    [
        ("8.0", [(8, 0), (8, 6), (8, 9)], [(7, 5), (9, 0), (10, 0)]),
        ("8.6", [(8, 6), (8, 9)], [(8, 0), (9, 0)]),
        ("9.0a", [(9, 0)], [(8, 9), (9, 1), (10, 0)]),
        ("9.0a+PTX", [(9, 0)], [(10, 0)]),
        ("10.0f+PTX", [(10, 0), (10, 3)], [(9, 0), (12, 0)]),
        ("8.0+PTX", [(8, 0), (8, 6), (9, 0), (12, 0)], [(7, 5)]),
        ("10.0+PTX", [(10, 0), (10, 3), (12, 0)], [(8, 0), (9, 0)]),
    ],
)
def test_cuda_code_runs_on_compatible_gpus_only(gpu, capabilities, others):
    assert all(cuda.runs_on(gpu, capability) for capability in capabilities)
    assert not any(cuda.runs_on(gpu, capability) for capability in others)


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 3), (12, 1)])
def test_cuda_gpu_with_code_is_supported(capability, machine):
    machine(capability, "8.0", "9.0", "10.0+PTX")
    assert reasons(cuda) == []


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (dict(head_dim=20), "head size: expected a multiple of 8 up to 128, got 20"),
        (dict(head_dim=136), "head size: expected a multiple of 8 up to 128, got 136"),
        (dict(dtype=torch.float32), "dtype: expected float16 or bfloat16, got float32"),
    ],
)
def test_call_outside_the_limits_of_cuda_is_named(call, reason, machine):
    machine((8, 0), "8.0")
    assert reasons(cuda, **call) == [reason]


def test_cuda_gpu_without_code_names_the_build_command(machine):
    machine((8, 6), "9.0", "10.0+PTX")
    (reason,) = reasons(cuda)
    assert "compute capability 8.6" in reason
    assert "code for 9.0, 10.0+PTX" in reason
    assert "TORCH_CUDA_ARCH_LIST=8.6 QACG_BUILD_CUDA=1 pip install" in reason


def test_cuda_gpu_that_is_too_old_is_unsupported(machine):
    machine((7, 0), "8.0+PTX")
    assert reasons(cuda) == ["compute capability: expected 8.0 or newer, got 7.0"]


def test_driver_older_than_library_names_the_remedy(monkeypatch):
    monkeypatch.setattr(cuda, "_versions", (12080, 13000))
    monkeypatch.setattr(cuda, "_missing", [])
    monkeypatch.setattr(cuda, "_gpu_is_there", lambda: True)
    (reason,) = cuda.missing()
    assert reason.startswith("driver: expected one for CUDA 13.0 or newer")
    assert "got one for 12.8. Update the driver, or compile the library with nvcc 12: QACG_BUILD_CUDA=1" in reason


@pytest.mark.parametrize(
    ("capability", "driver", "supported"),
    [((10, 3), 13000, True), ((11, 0), 13000, False), ((11, 0), 13010, True), ((11, 0), 14000, True)],
)
def test_driver_older_than_ptx_supports_machine_code_only(capability, driver, supported, machine, monkeypatch):
    machine(capability, "8.0", "9.0", "10.0+PTX", "12.0")
    monkeypatch.setattr(cuda, "_versions", (driver, 13010))
    assert (reasons(cuda) == []) == supported


def test_cuda_library_of_other_version_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda, "_missing", [])
    monkeypatch.setattr(cuda, "library", lambda name: tmp_path / "_cuda.so")
    monkeypatch.setattr(cuda, "why_not_loadable", lambda: None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: ctypes.pythonapi)  # a library without our functions
    cuda._load()
    (reason,) = cuda.missing()
    for part in ("another version of the package", "QACG_BUILD_CUDA=1 pip install", "qacg_cuda_gpus"):
        assert part in reason

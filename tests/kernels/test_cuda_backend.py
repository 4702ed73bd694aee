"""What the CUDA backend says of GPUs that are not here, and of a library that is not the package's own."""

import ctypes
from types import SimpleNamespace

import pytest
import torch

from qacg_kernels.backends import cuda
from qacg_kernels.backends.protocol import outside_limits


@pytest.fixture
def reasons(monkeypatch):
    """The backend's reasons against a call on a GPU of some capability, with a library for some GPUs."""

    def find(capability, *gpus, device="cuda:0"):
        monkeypatch.setattr(cuda, "_gpus", gpus)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        cuda.capability.cache_clear()
        query = SimpleNamespace(device=torch.device(device), dtype=torch.bfloat16, shape=(1, 1, 1, 64))
        return outside_limits(cuda, SimpleNamespace(query=query, gate_form="row"))

    yield find
    cuda.capability.cache_clear()


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
def test_which_gpus_code_runs_on(gpu, capabilities, others):
    assert all(cuda.runs_on(gpu, capability) for capability in capabilities)
    assert not any(cuda.runs_on(gpu, capability) for capability in others)


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 3), (12, 1)])
def test_gpu_with_code_is_supported(capability, reasons):
    assert reasons(capability, "8.0", "9.0", "10.0+PTX") == []


def test_gpu_without_code_names_the_build_command(reasons):
    (reason,) = reasons((8, 6), "9.0a", "10.0+PTX")
    assert "compute capability 8.6" in reason
    assert "code for 9.0a, 10.0+PTX" in reason
    assert "TORCH_CUDA_ARCH_LIST=8.6 QACG_BUILD_CUDA=1 pip install" in reason


def test_gpu_older_than_the_instructions_is_unsupported(reasons):
    (reason,) = reasons((7, 0), "8.0+PTX")
    assert reason == "compute capability: expected 8.0 or newer, got 7.0"


@pytest.mark.compiles
@pytest.mark.filterwarnings("error:.*lru_cache")
def test_torch_compile_takes_the_answer_for_a_constant(monkeypatch):
    """It would warn of the cache and trace the functions behind it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    cuda.capability.cache_clear()

    def takes(x):
        return x if cuda._no_code_on(x.device) else x + 1

    try:
        for gpus, expected in ((("8.0",), 1.0), (("9.0",), 0.0)):
            monkeypatch.setattr(cuda, "_gpus", gpus)
            torch._dynamo.reset()
            assert torch.compile(takes, backend="eager", fullgraph=True)(torch.zeros(1)).item() == expected
    finally:
        cuda.capability.cache_clear()


def test_capability_is_not_queried_without_gpu(reasons, monkeypatch):
    (reason,) = reasons((7, 0), "8.0", device="cpu")
    assert reason == "device: expected cuda, got cpu"


def test_fake_tensors_are_judged_by_where_they_begin():
    """They have no address: what matters of it follows from the offset in their storage."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        memory = torch.empty(2 * 3 * 5 * 16 + 8, dtype=torch.bfloat16)
        aligned, off = (memory[offset:][: 2 * 3 * 5 * 16].view(2, 3, 5, 16) for offset in (8, 4))
        other = torch.empty(2, 3, 5, 16, dtype=torch.bfloat16)
    problem = SimpleNamespace(query=aligned, key=other, value=off, context_query=other, context_key=other, head_dim=16)
    (why,) = cuda.why_plain(problem)
    assert why.startswith("value: expected rows with unit stride")
    assert ".clone(" in why


def test_library_of_other_version_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda, "_missing", [])
    monkeypatch.setattr(cuda, "library", lambda name: tmp_path / "_cuda.so")
    monkeypatch.setattr(cuda, "why_not_loadable", lambda path: None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: ctypes.pythonapi)  # a library without our functions
    cuda._load()
    (reason,) = cuda.missing()
    assert "of another version" in reason
    assert "QACG_BUILD_CUDA=1 pip install" in reason
    assert "qacg_cuda_gpus" in reason

"""Options and fixtures of all tests; `backend` and `dtype` run a test over what this machine offers."""

import pytest
import torch

from qacg_kernels import available_backends
from qacg_kernels.testing import supported_dtypes


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="where the tensors of operator tests live: cpu or cuda")


def pytest_collection_modifyitems(config, items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device on this machine")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def pytest_generate_tests(metafunc):
    if "backend" not in metafunc.fixturenames:
        return
    device = metafunc.config.getoption("--device")
    # float64 is the oracle's own type and judged by it; see test_reference_against_oracle.py.
    offered = {
        name: [d for d in supported_dtypes(name, device) if d != torch.float64]
        for name in available_backends()
    }
    if "dtype" in metafunc.fixturenames:
        pairs = [(name, dtype) for name, dtypes in offered.items() for dtype in dtypes]
        ids = [f"{name}-{str(dtype).removeprefix('torch.')}" for name, dtype in pairs]
        metafunc.parametrize(("backend", "dtype"), pairs, ids=ids)
    else:
        metafunc.parametrize("backend", [name for name, dtypes in offered.items() if dtypes])


@pytest.fixture
def device(request) -> str:
    return request.config.getoption("--device")


@pytest.fixture(autouse=True)
def poisoned_memory(request):
    """Fresh memory holds NaN, so a kernel that leaves part of its output unwritten is seen."""
    if request.node.get_closest_marker("compiles"):
        yield  # Inductor's own buffers are no business of these tests
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def restore_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)

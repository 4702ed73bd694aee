"""Options and fixtures of all tests; `backend` and `dtype` run a test over what this machine offers."""

import os

# Else MKL's float32 sums depend on where a tensor lies in memory and on who made the processor, to the last bits: a
# reloaded model would not give the same bits, and eager's error, the measure of all others, would be another elsewhere.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")

# Inductor would start a process for every core, each of which imports torch.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Tests compare kernels themselves; those of the self-check turn it on.
os.environ.setdefault("QACG_SELF_CHECK", "off")

import sys
from pathlib import Path

import optional_packages
import pytest
import torch
from outcomes import Budget, Recorder, in_shard

from qacg_kernels import available_backends
from qacg_kernels.backends.cuda import hopper
from qacg_kernels.testing import supported_dtypes

sys.path.append(str(Path(__file__).resolve().parent.parent))  # benchmarks is not part of the package


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="where the tensors of operator tests live: cpu or cuda")
    parser.addoption(
        "--backend",
        action="append",
        help="run operator tests over this backend, which may be given more than once; all available ones if not given",
    )
    parser.addoption("--shard", metavar="K/N", help="only the K-th part of N, counted from 0, of the tests")
    parser.addoption("--seconds", type=float, help="begin no test after so many")
    parser.addoption("--outcomes", type=Path, metavar="FILE", help="a row of JSON for each test")
    parser.addoption("--unpoisoned", action="store_true", help="leave fresh memory as it is, for tools that watch it")
    parser.addoption("--thorough-cuda", action="store_true", help="races: longer list, each barrier taken out")
    parser.addoption("--random-calls", type=int, default=60, help="how many calls test_random_calls.py draws")


def pytest_configure(config):
    # The tensors are small, and threads that wait for one another on a busy machine cost ten times the work, here and
    # in the processes that tests start; test_threads.py is about threads.
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    config.pluginmanager.register(optional_packages)
    if config.pluginmanager.hasplugin("benchmark"):
        config.option.benchmark_disable = True  # no test is a benchmark, and under xdist the plugin would warn of it
    outcomes, seconds = config.getoption("--outcomes"), config.getoption("--seconds")
    if outcomes is not None:
        config.pluginmanager.register(Recorder(outcomes))
    if seconds is not None:
        config.pluginmanager.register(Budget(seconds))


@pytest.hookimpl(tryfirst=True)  # before pytest's own hook, which applies -m
def pytest_collection_modifyitems(config, items):
    for item in items:
        if not item.get_closest_marker("full"):
            item.add_marker("fast")
    shard = config.getoption("--shard")
    if shard is not None:
        others = [item for item in items if not in_shard(item.nodeid, shard)]
        items[:] = [item for item in items if in_shard(item.nodeid, shard)]
        config.hook.pytest_deselected(items=others)
    wide = pytest.mark.skip(reason=f"hopper and gluon take head sizes to {hopper.MAX_HEAD_DIM}")
    for item in items:
        arguments = item.callspec.params if hasattr(item, "callspec") else {}
        narrow = {"hopper", "gluon"} & {arguments.get("backend"), arguments.get("kernel")}
        if narrow and getattr(arguments.get("case"), "head_dim", 0) > hopper.MAX_HEAD_DIM:
            item.add_marker(wide)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device on this machine")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


def pytest_generate_tests(metafunc):
    """`backend` runs over all available ones, `kernel` over those that are not the reference."""
    asked = {"backend", "kernel"} & set(metafunc.fixturenames)
    if not asked:
        return
    (argument,) = asked
    device = metafunc.config.getoption("--device")
    only = metafunc.config.getoption("--backend")
    # float64 is the oracle's own type and judged by it; see test_reference_against_oracle.py.
    offered = {
        name: [d for d in supported_dtypes(name, device) if d != torch.float64]
        for name in available_backends()
        if (only is None or name in only) and (argument == "backend" or name != "reference")
    }
    if "dtype" in metafunc.fixturenames:
        pairs = [(name, dtype) for name, dtypes in offered.items() for dtype in dtypes]
        ids = [f"{name}-{str(dtype).removeprefix('torch.')}" for name, dtype in pairs]
        metafunc.parametrize((argument, "dtype"), pairs, ids=ids)
    else:
        # Tests that choose a type themselves have float32 too, which a backend of tensor cores alone does not take.
        metafunc.parametrize(argument, [name for name, dtypes in offered.items() if torch.float32 in dtypes])


@pytest.fixture
def device(request) -> str:
    return request.config.getoption("--device")


@pytest.fixture(autouse=True)
def poisoned_memory(request):
    """Fresh memory holds NaN, so a kernel that leaves part of its output unwritten is seen."""
    if request.node.get_closest_marker("compiles") or request.config.getoption("--unpoisoned"):
        yield  # Inductor's own buffers are no business of these tests
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def small_data(tmp_path_factory) -> Path:
    """A folder with the first sentences of each split of the bundled sample: 240, 80 and 80 rows."""
    from qacg_models.data import sample_directory  # here, for the operators' tests run where transformers is not

    folder = tmp_path_factory.mktemp("small")
    for split, rows in (("train", 240), ("dev", 80), ("test", 80)):
        lines = (sample_directory() / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
        (folder / f"{split}.tsv").write_text("\n".join(lines[: 1 + rows]) + "\n", encoding="utf-8")
    return folder

"""Options and fixtures of all tests.

A test with `backend` runs with every available one that supports float32; with `dtype` too, in each dtype but float64.
One with `kernel` and no `dtype` also runs with backends of 16 bits only. Cases with head sizes that a backend does not
support are skipped.
"""

import os

# Otherwise the last bits of MKL's float32 sums depend on addresses and on the processor: a reloaded model would not
# give the same bits, and the error of eager, which the error rule uses, would differ between machines.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")

# Triton's interpreter multiplies with numpy. OpenBLAS's kernels for some processors (Haswell's, on a Zen CPU) add up a
# product and its transpose in different orders, so that forward and backward have other scores, unlike on a GPU.
if os.environ.get("TRITON_INTERPRET") == "1":
    os.environ.setdefault("OPENBLAS_CORETYPE", "Nehalem")

# Inductor would start one process per core, each of which imports torch.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Tests compare kernels themselves; the tests of the self-check enable it.
os.environ.setdefault("QACG_SELF_CHECK", "off")

import importlib.util
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

from qacg_kernels import available_backends
from qacg_kernels.backends import dispatch
from qacg_kernels.testing import supported_dtypes
from qacg_kernels.testing.inputs import Case

sys.path.append(str(Path(__file__).resolve().parent.parent))  # benchmarks is not part of the package


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="device of the operator tests: cpu or cuda")
    parser.addoption(
        "--backend",
        action="append",
        help="a backend of the operator tests, may be repeated; all available ones if not given",
    )
    parser.addoption("--seconds", type=float, help="skip tests that would start after this time")
    parser.addoption("--unpoisoned", action="store_true", help="do not fill new memory with NaN")
    parser.addoption("--random-calls", type=int, default=60, help="number of calls of test_random_calls.py")


def pytest_configure(config):
    # The tensors are small: threads that wait for each other on a busy machine take ten times as long, here and in the
    # processes that tests start. test_threads.py tests threads.
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if config.pluginmanager.hasplugin("benchmark"):
        config.option.benchmark_disable = True  # no test is a benchmark, and the plugin would warn under xdist
    config.started = time.monotonic()


@pytest.hookimpl(tryfirst=True)  # before the hook of pytest that applies -m
def pytest_collection_modifyitems(config, items):
    for item in items:
        if not item.get_closest_marker("full"):
            item.add_marker("fast")
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        name, case = parameters.get("backend") or parameters.get("kernel"), parameters.get("case")
        if name in dispatch.BACKENDS and isinstance(case, Case):
            for reason in dispatch.wrong_head_dim(dispatch.backend_of(name), case.head_dim):
                item.add_marker(pytest.mark.skip(reason=f"{name}: {reason}"))
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device on this machine")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


def pytest_generate_tests(metafunc):
    """Parametrises `backend` over all available ones, and `kernel` over all but the reference."""
    asked = {"backend", "kernel"} & set(metafunc.fixturenames)
    if not asked:
        return
    (argument,) = asked
    device = metafunc.config.getoption("--device")
    only = metafunc.config.getoption("--backend")
    # float64 is tested in test_reference_against_oracle.py.
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
        needed = {torch.float32} if argument == "backend" else {torch.float32, torch.bfloat16}
        metafunc.parametrize(argument, [name for name, dtypes in offered.items() if needed.intersection(dtypes)])


@pytest.fixture
def device(request) -> str:
    return request.config.getoption("--device")


@pytest.fixture(autouse=True)
def fresh_selections():
    """Discards cached selections of backends, which an earlier test may have changed."""
    dispatch.forget()


@pytest.fixture(autouse=True)
def poisoned_memory(request):
    """Fills new memory with NaN, which shows output that a kernel does not write."""
    if request.node.get_closest_marker("compiles") or request.config.getoption("--unpoisoned"):
        yield  # buffers of Inductor are not filled
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def small_data(tmp_path_factory) -> Path:
    """A folder with the first sentences of each split of the bundled sample: 240, 80 and 80 rows."""
    from qacg_models.sentiment.dataset import sample_directory

    folder = tmp_path_factory.mktemp("small")
    for split, rows in (("train", 240), ("dev", 80), ("test", 80)):
        lines = (sample_directory() / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
        (folder / f"{split}.tsv").write_text("\n".join(lines[: 1 + rows]) + "\n", encoding="utf-8")
    return folder


# Tests whose imports require an optional package that is not installed are skipped. Import errors of installed packages
# and of this repository's modules remain errors. So the tests of the operators run with torch and pytest only.

# Modules of the dependencies and extras of both distributions, and numpy, which is installed with them.
OPTIONAL = {
    *("transformers", "safetensors", "tokenizers", "accelerate", "sklearn", "matplotlib", "tqdm", "pyarrow", "yaml"),
    *("filelock", "numpy", "onnx", "onnxruntime", "onnxscript", "torchao", "tensorboard", "triton", "mypy"),
    *("openpyxl", "fastapi", "httpx", "lazy_loader", "pandas", "threadpoolctl"),
}


def missing_package(error: BaseException | None) -> str | None:
    """The name of the optional package whose absence caused an error; None if the error has another cause."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    missing = isinstance(error, ModuleNotFoundError) and name in OPTIONAL and importlib.util.find_spec(name) is None
    return name if missing else None


class TestModule(pytest.Module):
    """A test module that is skipped if its imports require an optional package that is not installed."""

    def collect(self):
        try:
            return super().collect()
        except self.CollectError as error:
            if name := missing_package(error.__cause__):
                pytest.skip(f"{name} is not installed", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path, parent):
    return TestModule.from_parent(parent, path=module_path)


def _skipped_if_missing() -> Generator[None, object, object]:
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if name := missing_package(error):
            pytest.skip(f"{name} is not installed")
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item) -> Generator[None, object, object]:
    seconds = item.config.getoption("--seconds")
    if seconds is not None and time.monotonic() >= item.config.started + seconds:
        pytest.skip("not run: the time limit is reached")
    return (yield from _skipped_if_missing())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item) -> Generator[None, object, object]:
    return (yield from _skipped_if_missing())

"""A pytest plugin that skips tests whose imports require optional packages that are not installed.

Import errors of installed packages and of this repository's modules remain errors. So the tests of the operators run
with torch and pytest only.
"""

import importlib.util
from collections.abc import Generator

import pytest

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
    return (yield from _skipped_if_missing())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item) -> Generator[None, object, object]:
    return (yield from _skipped_if_missing())

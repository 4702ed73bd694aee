"""Every exported function and class has an Example in its docstring, and it runs."""

import doctest
import importlib
import inspect
import re

import pytest

PACKAGES = ("qacg_kernels", "qacg_models")


def exported():
    for package in PACKAGES:
        module = pytest.importorskip(package)
        for name in module.__all__:
            yield f"{package}.{name}"


@pytest.mark.parametrize("path", list(exported()))
def test_exported_name_has_an_example_that_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    package, _, name = path.partition(".")
    found = getattr(importlib.import_module(package), name)
    if not (inspect.isclass(found) or inspect.isfunction(found)):
        pytest.skip("neither a function nor a class")
    source = inspect.getdoc(found) or ""
    assert re.search(r"^Examples?:$", source, re.MULTILINE), "the docstring has no Example section"
    namespace = vars(importlib.import_module(found.__module__)).copy()
    test = doctest.DocTestParser().get_doctest(source, namespace, path, None, 0)
    assert test.examples
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report = []
    runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)

"""The examples in the docstrings of models, layers and configurations run and print what they show."""

import doctest
import importlib
from pathlib import Path

import pytest
import qacg_models

ROOT = Path(qacg_models.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    for folder in ("configs", "models", "modules")
    for path in (ROOT / folder).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_print_what_they_show(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0

"""Mistakes in the source of the Triton kernels, in the interpreter, are detected by the first call that they affect."""

import json

import pytest
from processes import SUPPORT, run_python

pytest.importorskip("triton")
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def results():
    return json.loads(run_python(SUPPORT / "edited_triton.py").stdout)


def test_unchanged_kernels_print_no_warning(results):
    assert results["unchanged"] is True


def test_every_edit_is_detected_and_falls_back(results):
    edits = {name: found for name, found in results.items() if name != "unchanged"}
    assert len(edits) >= 12
    assert [f"{name}: {what}" for name, found in edits.items() for what, holds in found.items() if not holds] == []

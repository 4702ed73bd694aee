"""Mistakes in the source of the Triton kernels, in the interpreter, are detected by the first call that they affect."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.full
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results():
    command = [sys.executable, str(ROOT / "tests/support/edited_triton.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_unchanged_kernels_print_no_warning(results):
    assert results["unchanged"] is True


def test_every_edit_is_detected_and_falls_back(results):
    edits = {name: found for name, found in results.items() if name != "unchanged"}
    assert len(edits) >= 12
    assert [f"{name}: {what}" for name, found in edits.items() for what, holds in found.items() if not holds] == []

"""Training with the Hopper forward runs Triton's backward, which reads what that forward saves.

The forward runs in the CUDA emulator and the backward in Triton's interpreter, in a process of its own.
"""

import importlib.util
import json

import pytest
from cuda_emulator import build
from processes import ROOT, SUPPORT, run_python

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler to build the emulator with"),
]


@pytest.fixture(scope="module")
def records():
    """Of the cases that met the error rule, by name."""
    paths = (ROOT, ROOT / "python", ROOT / "tests", SUPPORT)
    done = run_python(SUPPORT / "hopper_training.py", paths=paths, TRITON_INTERPRET="1")
    return {record.pop("case"): record for record in map(json.loads, done.stdout.splitlines())}


def test_hopper_training_calls_triton_backward(records):
    assert {name: record["backwards"] for name, record in records.items()} == dict.fromkeys(records, 1)


def test_hopper_training_forward_uses_wgmma(records):
    without = [name for name, record in records.items() if record.get("wgmma") == 0]
    assert without == ["odd strides"]


def test_hopper_training_compiled_equals_eager(records):
    assert records["compiled"]["equal"]


def test_explain_names_the_backward_of_hopper(records):
    assert "forward with wgmma" in records["single tile"]["note"]
    assert "; the backward is that of 'triton' (" in records["single tile"]["note"]

"""What is compiled ahead of time is what a launch would compile: types, constants, multiples of 16 and options.

Triton makes machine code for a description that it takes from a call's arguments: absent members, strides and sizes of
1 are constants, numbers and addresses may be known as multiples of 16. Here its own description of a model's calls, on
a GPU that is not there, is held equal to that of the builds that `tests/support/triton_builds.py` compiles and
checks.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@pytest.fixture(scope="module")
def printed():
    """What tests/support/launched_calls.py prints."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # another Triton's folder, it may be
    paths = os.pathsep.join([*filter(None, inherited), str(ROOT), str(ROOT / "tests/support")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"}
    command = [sys.executable, str(ROOT / "tests/support/launched_calls.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.full
def test_builds_are_specialised_like_model_calls(printed):
    assert {build: entry["differences"] for build, entry in printed["calls"].items() if entry["differences"]} == {}


@pytest.mark.full
def test_calls_cover_every_kernel_and_kind(printed):
    from triton_builds import VARIANTS

    functions = {name for entry in printed["calls"].values() for name in entry["functions"]}
    assert functions == {
        "forward_kernel",
        "key_gates_kernel",
        "row_terms_kernel",
        "key_blocks_kernel",
        "query_blocks_kernel",
        "gate_sums_kernel",
        "gate_gradients_kernel",
    }
    variants = {build.split(", ", 1)[1] for build in printed["calls"]}
    assert set(VARIANTS) - variants == {"TF32, all at once"}  # "TF32" and "column gate, all at once" are its parts


@pytest.mark.full
def test_sizes_and_strides_of_one_differ(printed):
    differences = printed["packed beside one head"]
    assert "forward_kernel: signature of  call sizes heads: launched 'i32', built 'constexpr'" in differences
    assert "forward_kernel: signature of  row_max_out row: launched 'i32', built 'constexpr'" in differences

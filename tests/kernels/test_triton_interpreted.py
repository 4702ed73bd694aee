"""The Triton kernels in Triton's interpreter, which needs no GPU, meet the error rule.

Triton reads TRITON_INTERPRET when a kernel is defined, so the operator tests run in separate processes: every kernel in
every variant on small tiles, schemas and fakes, torch.compile, memory that must not be read. `make check-interpreted`
runs all of them. bfloat16 is left out: its products are wrong in some versions of the interpreter.
"""

import importlib.util
import re

import pytest
from full_members import member
from processes import ROOT, run_python

FILES = (
    "test_triton_kernels.py",
    "test_operators.py",
    "test_compile.py",
    "test_edges.py",
    "test_hidden_keys.py",
    "test_backends_within_budget.py",
)
SELECTION = (
    "test_triton_kernels or (opcheck and not save_quasi_out) or test_fullgraph or (keys_beyond and 17)"
    " or (visible_nan_reaches and 17) or far_below_zero or large_common or test_empty_call"
    " or (test_hidden_keys and triton) or negative_bits"
)
# Single-tile rows in float32 with lambda, and packed tiles in float16 with a column gate. Inputs with a negative bit.
PART = (
    "test_variants_meet and (float32 and whole and lambda and not packed or float16 and tiled and column and packed)"
    " or negative_bits"
)
# Minimum numbers of tests per file, which detect a selection that no longer finds its tests.
LEAST_OF_PART = {"kernels": 2, "edges": 6}
LEAST_OF_KERNELS = {"kernels": 96}
LEAST = {"operators": 10, "compile": 5, "edges": 43, "hidden": 12, "budget": 5}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(
    ("files", "selection", "least"),
    [
        member((FILES[0], FILES[3]), PART, LEAST_OF_PART, id="part", fast=True),
        member(FILES[:1], SELECTION, LEAST_OF_KERNELS, id="kernels", fast=False),
        member(FILES[1:], SELECTION, LEAST, id="operators", fast=False),
    ],
)
def test_kernels_in_the_interpreter(files, selection, least):
    command = ["-m", "pytest", "-p", "no:cacheprovider", "--backend", "triton", "-m", "", "-rp", "-k", selection]
    if len(files) != 2 and importlib.util.find_spec("xdist"):
        command += ["-n", "auto"]
    paths = (ROOT, ROOT / "python")
    output = run_python(
        *command, *(f"tests/kernels/{name}" for name in files), paths=paths, TRITON_INTERPRET="1"
    ).stdout
    passed = re.findall(r"^PASSED tests/kernels/test_(\w+)\.py", output, re.MULTILINE)
    counts = {word: sum(word in name for name in passed) for word in least}
    assert all(counts[word] >= count for word, count in least.items()), counts

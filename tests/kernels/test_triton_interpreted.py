"""The Triton kernels in Triton's interpreter, which needs no GPU, meet the error rule.

Triton reads TRITON_INTERPRET when a kernel is defined, so the operator tests run in separate processes: every kernel in
every variant on small tiles, schemas and fakes, torch.compile, memory that must not be read. `make check-interpreted`
runs all of them. bfloat16 is left out: its products are wrong in some versions of the interpreter.
"""

import importlib.util
import json

import pytest
from full_members import member
from processes import ROOT, SUPPORT, run_python

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
    ("arguments", "least"),
    [
        member(["--select", PART, "--jobs", "1", "--files", FILES[0], FILES[3]], LEAST_OF_PART, id="part", fast=True),
        member(["--select", SELECTION, "--files", FILES[0]], LEAST_OF_KERNELS, id="kernels", fast=False),
        member(["--select", SELECTION, "--files", *FILES[1:]], LEAST, id="operators", fast=False),
    ],
)
def test_kernels_in_the_interpreter(arguments, least, tmp_path):
    command = [ROOT / "tests/kernel_suite.py", "--device", "cpu", "--backends", "triton", "--out", tmp_path]
    run_python(*command, "--seconds", "1500", *arguments, paths=(ROOT, ROOT / "python", SUPPORT))
    _, *rows = map(json.loads, (tmp_path / "outcomes.jsonl").read_text().splitlines())
    passed = [row["test"] for row in rows if row["outcome"] == "passed"]
    counts = {word: sum(word in test.split("::")[0] for test in passed) for word in least}
    assert all(counts[word] >= count for word, count in least.items()), counts

"""Launches of the Triton backend without a GPU: Triton's own Python code runs up to the call of the driver.

The tests assert the amount of Python code, not its time, which `python -m benchmarks.host_cost` measures. Builds that
are compiled ahead of time must have the types, constants, alignment and options of a model's launches.
"""

import importlib.util
import json

import pytest
import torch
from faked_gpu import call as faked_call
from processes import ROOT, SUPPORT, run_python

from qacg_kernels.backends import cuda, triton
from qacg_kernels.backends.dispatch import outside_limits
from qacg_kernels.backends.triton import tile_tables
from qacg_kernels.functional import problem_of

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

# Calls of functions, in Python and C, of one forward with a lambda tensor, from quasi_attention to the driver. A tenth
# of them are Triton's: its inspection of a kernel's arguments is not repeated.
MOST_CALLS = 145
MOST_FILES = 7


def output_of(*arguments: object) -> str:
    """The output of a Python process without Triton's interpreter."""
    return run_python(*arguments, paths=(ROOT, SUPPORT), OMP_NUM_THREADS="1", TRITON_INTERPRET="0").stdout


@pytest.mark.full
@needs_triton
def test_forward_is_one_launch_with_few_python_calls():
    """A prepared launch equals the one that Triton would make with the same arguments."""
    printed = json.loads(output_of(SUPPORT / "silent_gpu.py"))
    assert printed["launched"] == [["forward_kernel", 2 * 3, 1, 1, 0]]
    assert 50 < printed["calls"] <= MOST_CALLS
    assert len(printed["cases"]) > 20
    assert printed["differences"] == []
    assert printed["files"][:1] == ["functional.py"]
    assert len(printed["files"]) <= MOST_FILES, "from the public function to the launch"


@pytest.mark.full
@needs_triton
def test_host_cost_prints_a_row_per_kind_of_call():
    output = output_of("-m", "benchmarks.host_cost", "--quick")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in output.splitlines()[2:]]
    assert len(rows) == 9
    assert {len(row) for row in rows} == {4}
    assert all(float(cell.removesuffix(" us")) > 0 for _name, *cells in rows for cell in cells)


@pytest.fixture(scope="module")
def printed():
    """The output of launched_calls.py: Triton's descriptions of a model's calls, compared with those of the builds."""
    return json.loads(output_of(SUPPORT / "launched_calls.py"))


@pytest.mark.full
@needs_triton
def test_builds_are_specialised_like_model_calls(printed):
    assert {build: entry["differences"] for build, entry in printed["calls"].items() if entry["differences"]} == {}


@pytest.mark.full
@needs_triton
def test_model_calls_cover_every_kernel_and_variant(printed):
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
    assert set(VARIANTS) - variants == {"TF32, all at once"}  # consists of "TF32" and "column gate, all at once"


@pytest.mark.full
@needs_triton
def test_descriptions_differ_in_sizes_and_strides_of_one(printed):
    differences = printed["packed beside one head"]
    assert "forward_kernel: signature of  call sizes heads: launched 'i32', built 'constexpr'" in differences
    assert "forward_kernel: signature of  row_max_out row: launched 'i32', built 'constexpr'" in differences


_CACHES = (cuda._gpu_is_there, cuda.capability, triton._gpu_is_there, triton._without_table, tile_tables._found)


@pytest.fixture
def call():
    return faked_call(training=True)


@pytest.fixture
def queries(call, monkeypatch):
    """The queries of the driver for a simulated H200, after those for the tensors of the call."""
    found = []

    def answer(name, value):
        def query(*_):
            found.append(name)
            return value

        monkeypatch.setattr(torch.cuda, name, query)

    class Properties:
        shared_memory_per_block_optin = 227 * 1024

    answer("is_available", True)
    answer("device_count", 1)
    answer("get_device_capability", (9, 0))
    answer("get_device_name", "NVIDIA H200")
    answer("get_device_properties", Properties)
    monkeypatch.setattr(cuda, "_missing", [])
    monkeypatch.setattr(cuda, "_gpus", ("9.0",))
    for cache in _CACHES:
        cache.cache_clear()
    yield found
    for cache in _CACHES:
        cache.cache_clear()


@pytest.mark.parametrize("module", [cuda, triton], ids=["cuda", "triton"])
def test_second_call_does_not_query_the_driver(module, call, queries, monkeypatch, tmp_path):
    monkeypatch.setenv("QACG_TRITON_TABLES", str(tmp_path))

    def choose():
        problem = problem_of(*call)
        return module.missing(), outside_limits(module, problem), module.residuals(problem)

    first = choose()
    assert first[:2] == ([], [])
    assert {"is_available", "get_device_capability"} <= set(queries)
    queries.clear()
    assert choose() == first
    assert queries == []

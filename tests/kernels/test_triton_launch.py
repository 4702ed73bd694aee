"""Launches of the Triton backend without a GPU: Triton's own Python code runs up to the call of the driver."""

import importlib.util
import re

import pytest
import torch
from processes import ROOT, SUPPORT, run_python
from torch._subclasses import FakeTensorMode

from qacg_kernels.backends import cuda, triton
from qacg_kernels.backends.dispatch import outside_limits
from qacg_kernels.backends.triton import tile_tables
from qacg_kernels.functional import problem_of

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def output_of(*arguments: object, **variables: str) -> str:
    """The output of a Python process without Triton's interpreter."""
    return run_python(*arguments, paths=(ROOT, SUPPORT), OMP_NUM_THREADS="1", TRITON_INTERPRET="0", **variables).stdout


@pytest.mark.full
@needs_triton
def test_launch_parameters_equal_those_of_triton(tmp_path):
    from benchmarks.absent_gpu import stub_environment

    assert output_of(SUPPORT / "silent_gpu.py", **stub_environment(tmp_path)) == "36 calls\n"


@pytest.mark.full
@needs_triton
def test_prepared_calls_need_no_python(tmp_path):
    from benchmarks.absent_gpu import stub_environment

    checks = re.findall(r"^def (\w+)\(\) -> None:", (SUPPORT / "prepared_calls.py").read_text(), re.MULTILINE)
    found = output_of(SUPPORT / "prepared_calls.py", **stub_environment(tmp_path)).split()
    assert sorted([*found, "main"]) == sorted(checks)


@pytest.mark.full
@needs_triton
def test_host_cost_prints_a_row_per_kind_of_call():
    output = output_of("-m", "benchmarks.host_cost", "--quick")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in output.splitlines()[2:]]
    assert len(rows) == 10
    assert {len(row) for row in rows} == {5}
    assert all(float(cell.rstrip("x").replace(",", "")) > 0 for _name, *cells in rows for cell in cells)


@needs_triton
@pytest.mark.parametrize(("arguments", "missing"), [([], "C compiler: expected"), (["--count"], "--count: expected")])
def test_host_cost_without_a_tool_names_it(arguments, missing, tmp_path):
    done = run_python("-m", "benchmarks.host_cost", *arguments, status=2, PATH=str(tmp_path), CC="")
    assert done.stderr.startswith(missing)


_CACHES = (cuda._gpu_is_there, cuda.capability, triton._gpu_is_there, triton._without_table, tile_tables._found)


@pytest.fixture
def call():
    """The arguments of a call on a GPU, without values."""
    with FakeTensorMode():
        x = torch.empty(2, 3, 128, 64, dtype=torch.bfloat16, device="cuda:0", requires_grad=True)
        return x, x, x, x, x, torch.empty(2, 3, 128, dtype=torch.bfloat16, device="cuda:0")


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

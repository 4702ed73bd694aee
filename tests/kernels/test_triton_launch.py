"""The host's side of a launch without a GPU: Triton's own Python runs, on an absent GPU, up to the driver's call.

What is asserted is how much Python that is, never how long it takes: `python -m benchmarks.host_cost` tells that.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from faked_gpu import call as faked_call

from qacg_kernels.backends import cuda, triton
from qacg_kernels.backends.protocol import outside_limits
from qacg_kernels.backends.triton import tile_tables
from qacg_kernels.functional import problem_of

ROOT = Path(__file__).resolve().parents[2]

# Calls of functions, Python's and C's, of one forward of the operator with a lambda tensor, from quasi_attention to
# the driver. Triton's own are a tenth of them: its look through a kernel's arguments is not repeated.
MOST_CALLS = 145


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_forward_is_one_launch_with_few_python_calls():
    """And a prepared launch is the one that Triton would make of the same arguments."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # another Triton's folder, it may be
    paths = os.pathsep.join([*filter(None, inherited), str(ROOT), str(ROOT / "tests/support")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"}
    command = [sys.executable, str(ROOT / "tests/support/silent_gpu.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["launched"] == [["forward_kernel", 2 * 3, 1, 1, 0]]
    assert 50 < told["calls"] <= MOST_CALLS
    assert len(told["asked"]) > 20
    assert told["differences"] == []


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_hosts_cost_is_told_for_each_kind_of_call():
    command = [sys.executable, "-m", "benchmarks.host_cost", "--quick"]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    assert len(rows) == 9
    assert {len(row) for row in rows} == {4}
    assert all(int(cell.removesuffix(" us")) > 0 for _name, *cells in rows for cell in cells)


_CACHES = (cuda._gpu_is_there, cuda.capability, triton._gpu_is_there, triton._capability, tile_tables._found)


@pytest.fixture
def call():
    return faked_call(training=True)


@pytest.fixture
def asked(call, monkeypatch):
    """Questions to the driver about an H200 that is not there. Torch asked its own before, for the call's tensors."""
    found = []

    def answer(name, value):
        def asked_for(*_):
            found.append(name)
            return value

        monkeypatch.setattr(torch.cuda, name, asked_for)

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
def test_second_call_does_not_query_the_driver(module, call, asked, monkeypatch, tmp_path):
    monkeypatch.setenv("QACG_TRITON_TABLES", str(tmp_path))

    def choose():
        problem = problem_of(*call)
        return module.missing(), outside_limits(module, problem), module.residuals(problem)

    first = choose()
    assert first[:2] == ([], [])
    assert "is_available" in asked
    assert "get_device_capability" in asked
    asked.clear()
    assert choose() == first
    assert asked == []

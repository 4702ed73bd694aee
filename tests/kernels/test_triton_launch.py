"""Launches of the Triton backend without a GPU: Triton's own Python code runs up to the call of the driver."""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
import torch
from processes import SUPPORT, run_python

import benchmarks
import qacg_kernels

# Where this process finds the packages, which may be installed ones.
PATHS = *(Path(module.__file__).parents[1] for module in (benchmarks, qacg_kernels)), SUPPORT
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def output_of(*arguments: object, **options) -> str:
    """The output of a Python process without Triton's interpreter."""
    options = {"cwd": SUPPORT, "paths": PATHS, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"} | options
    return run_python(*arguments, **options).stdout


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


# Torch for the CPU stands for one for CUDA whose streams the library does not find.
PYTHON_ONLY = """
import torch
torch.version.cuda = "13.0"
import silent_gpu
from benchmarks.absent_gpu import StubGPU, replace_driver
from qacg_kernels import explain
from qacg_kernels.backends.triton import tile_tables
replace_driver(StubGPU("sm_90"))
with tile_tables.trial(tile_tables.shipped("sm_90")):
    for launch in silent_gpu.recorded(silent_gpu.CALLS["training"]):
        print(launch.kernel)
    print(explain(*silent_gpu.inputs()).notes["triton"])
"""


@pytest.mark.full
@needs_triton
@pytest.mark.parametrize(
    ("library", "reason"),
    [
        pytest.param(None, "start Python outside of the checkout", id="missing"),
        pytest.param("large file", "_launch.so: file too short", id="unreadable"),
        pytest.param("built", "_launch.so does not find the streams of torch", id="no streams"),
    ],
)
def test_without_the_library_python_launches(library, reason, tmp_path):
    from benchmarks.absent_gpu import stub_environment

    if library == "built" and torch.version.cuda:
        pytest.skip("torch has streams")
    installed = Path(qacg_kernels.__file__).parent
    omitted = shutil.ignore_patterns("_launch.so", "_build_launch.json", "__pycache__")
    package = shutil.copytree(installed, tmp_path / "qacg_kernels", ignore=omitted)
    if library == "built":
        shutil.copy(installed / "_launch.so", package)
    elif library:
        (package / "_launch.so").write_text(library)
    options = {"cwd": tmp_path, "paths": (tmp_path, *PATHS)} | stub_environment(tmp_path)
    *kernels, note = output_of("-c", PYTHON_ONLY, **options).splitlines()
    assert kernels == ["forward_kernel", "key_blocks_kernel"]
    assert note.endswith(reason)


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

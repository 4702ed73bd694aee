"""The instruction sets that csrc/cpu/capability.cpp selects on processors of QEMU.

The user mode of QEMU has neither AVX-512 nor AMX, so AVX2 is the newest instruction set tested with it.
"""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QEMU = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
COMPILER = os.environ.get("CXX", "").split() or [shutil.which("c++") or shutil.which("g++") or ""]

pytestmark = [
    pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="needs an x86-64 processor"),
    pytest.mark.skipif(not COMPILER[0], reason="no C++ compiler"),
    pytest.mark.skipif(QEMU is None, reason="no qemu-x86_64 (Debian: apt-get install qemu-user)"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("chosen") / "chosen_kernels"
    sources = [ROOT / "tests/support/chosen_kernels.cpp", ROOT / "csrc/cpu/capability.cpp"]
    subprocess.run([*COMPILER, "-std=c++20", *sources, "-o", path], check=True)
    return path


def chosen(model, program, capability=""):
    """Returns the selected variant and the reason for float32, bfloat16 and float16."""
    environment = os.environ | {"QACG_CPU_CAPABILITY": capability}
    command = [QEMU, "-cpu", model, program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [line.split(" ", 1) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("model", "variant"),
    [
        ("Nehalem", "plain"),
        ("IvyBridge", "plain"),  # AVX without AVX2
        ("Haswell", "avx2"),
        ("Haswell,-fma", "plain"),
        ("Haswell,-f16c", "plain"),
        ("Haswell,-xsave", "plain"),  # an operating system that does not save wide registers
        ("EPYC", "avx2"),
    ],
)
def test_older_processor_runs_its_instruction_set(program, model, variant):
    assert {name for name, _ in chosen(model, program)} == {variant}
    unavailable = chosen(model, program, "amx")
    assert {name for name, _ in unavailable} == {variant}
    reason = "QACG_CPU_CAPABILITY=amx is not available on this processor; "
    assert all(why.startswith(reason) for _, why in unavailable)
    assert {name for name, _ in chosen(model, program, "plain")} == {"plain"}

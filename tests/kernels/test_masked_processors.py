"""What is chosen on processors that lack instructions: csrc/cpu/capability.cpp itself, asked under QEMU's models of
them, and on this one with another rate of bfloat16's products.

QEMU's user mode has neither AVX-512 nor AMX, so that AVX2 is the newest that it can be asked about.
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
    pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="x86-64's instructions"),
    pytest.mark.skipif(not COMPILER[0], reason="no C++ compiler"),
]
on_a_model = pytest.mark.skipif(QEMU is None, reason="no qemu-x86_64 (Debian: apt-get install qemu-user)")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("chosen") / "chosen_kernels"
    sources = [ROOT / "tests/support/chosen_kernels.cpp", ROOT / "csrc/cpu/capability.cpp"]
    subprocess.run([*COMPILER, "-std=c++20", *sources, "-o", path], check=True)
    return path


def chosen(command, gain=2.0, capability=""):
    """Variant and reason of float32, bfloat16 and float16."""
    environment = os.environ | {"QACG_CPU_CAPABILITY": capability}
    done = subprocess.run([*command, str(gain)], env=environment, capture_output=True, text=True, check=True)
    return [line.split(" ", 1) for line in done.stdout.splitlines()]


@on_a_model
@pytest.mark.parametrize(
    ("model", "variant"),
    [
        ("Nehalem", "plain"),
        ("IvyBridge", "plain"),  # AVX, and not AVX2
        ("Haswell", "avx2"),
        ("Haswell,-fma", "plain"),
        ("Haswell,-f16c", "plain"),
        ("Haswell,-xsave", "plain"),  # an operating system that keeps no wide registers
        ("EPYC", "avx2"),
    ],
)
def test_an_older_processor_gets_what_it_has(program, model, variant):
    command = [QEMU, "-cpu", model, program]
    assert {name for name, _ in chosen(command)} == {variant}
    beyond = chosen(command, capability="amx")
    assert {name for name, _ in beyond} == {variant}, "asked for more than there is"
    assert all(why.startswith("QACG_CPU_CAPABILITY asks for amx, which is not here; ") for _, why in beyond)
    assert {name for name, _ in chosen(command, capability="plain")} == {"plain"}


@pytest.mark.parametrize(("gain", "widened"), [(0.5, True), (1.0, True), (1.4, True), (1.6, False), (2.0, False)])
def test_bfloat16_is_widened_by_the_rate_of_its_products(program, gain, widened):
    (float32, _), (bfloat16, why), _ = chosen([program], gain)
    if "vdpbf16ps" not in why:
        pytest.skip("this CPU has no vdpbf16ps, or AMX beside it")
    assert bfloat16 == (float32 if widened else "avx512_bf16")
    assert f"{gain:.2f} times" in why and why.startswith("widened") is widened
    (_, _), (forced, why), _ = chosen([program], gain, capability="avx512_bf16")
    assert forced == "avx512_bf16" and why == "QACG_CPU_CAPABILITY asks for it"


def test_unknown_name_is_one_line(program):
    for name, why in chosen([program], capability="sse9"):
        assert name == "-"
        assert why == "QACG_CPU_CAPABILITY: got 'sse9', wanted plain, avx2, avx512, avx512_bf16 or amx"

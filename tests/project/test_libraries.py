"""Compiled libraries that cannot be loaded: one line gives the reason, and the reference runs."""

import shutil
import struct

import pytest
import torch
from full_members import members
from processes import ROOT, run_python

from qacg_kernels.utils import native_libraries

X86, ARM = 62, 183
SECTIONS = 1000  # offset of the table of two sections


def elf(machine: int) -> bytes:
    """An ELF file whose header has sections up to its end."""
    head = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, SECTIONS, 0, 64, 56, 1, 64, 2, 1)
    names = struct.pack("<II", 1, 3) + bytes(56)  # the second section, a table of strings
    return head + bytes(SECTIONS + 64 - len(head)) + names


def mach_o(machine: int, size: int) -> bytes:
    head = struct.pack("<IIIIIIII", 0xFEEDFACF, machine, 0, 6, 1, 72, 0, 0)
    head += struct.pack("<II16sQQQQIIII", 0x19, 72, b"__TEXT", 0, size, 0, size, 5, 5, 0, 0)
    return head + bytes(size - len(head))


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(native_libraries.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch, "__version__", "2.10.0+cpu")


@pytest.fixture
def reason(tmp_path, here):
    def why_not(data: bytes) -> str | None:
        path = tmp_path / "_cpu.so"
        path.write_bytes(data)
        return native_libraries.why_not_loadable(path)

    return why_not


def test_complete_library_is_loadable(reason):
    assert reason(elf(X86)) is None


@pytest.mark.parametrize("size", [0, 10, 63, SECTIONS + 2 * 64 - 1])
def test_truncated_library_is_not_loadable(size, reason):
    text = reason(elf(X86)[:size])
    assert "Reinstall the package" in text
    assert f"{size:,}" in text
    assert "\n" not in text


def test_library_with_a_zero_end_is_not_loadable(reason):
    whole = elf(X86)
    text = reason(whole[:SECTIONS] + bytes(len(whole) - SECTIONS))
    assert text == ("_cpu.so: expected a section table at the end of 1,128 bytes, got none. Reinstall the package")


def test_other_file_is_not_loadable(reason):
    assert "expected a library" in reason(b"version https://git-lfs\n" * 9)
    assert "expected a library" in reason(b"\x7fELF\x01\x01" + bytes(100))


def test_library_for_another_processor_is_not_loadable(reason, monkeypatch):
    assert "expected code for x86_64, like this Python, got aarch64" in reason(elf(ARM))
    monkeypatch.setattr(native_libraries.platform, "machine", lambda: "aarch64")
    assert reason(elf(ARM)) is None


def test_macos_library_is_checked(reason, monkeypatch):
    whole = mach_o(0x0100000C, 4096)
    assert "got arm64" in reason(whole)
    monkeypatch.setattr(native_libraries.platform, "machine", lambda: "arm64")
    assert reason(whole) is None
    assert "expected 4,096 bytes, got 4,095" in reason(whole[:-1])


@pytest.mark.parametrize("version", ["2.9.1+cu128", "1.13.0"])
def test_torch_that_is_too_old_is_named(version, reason, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    assert reason(elf(X86)) == f"torch: expected 2.10 or newer, got {version}. Run pip install 'torch>=2.10'"


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0+cpu", "2.16.0a0+git12", "3.0.1"])
def test_newer_torch_is_accepted(version, reason, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    assert reason(elf(X86)) is None


CALL = """
import torch, qacg_kernels
from qacg_kernels import info
row = torch.ones(1, 1, 2, 8)
print(qacg_kernels.quasi_attention(row, row, row, row, row, 0 * row[..., 0]).sum().item())
print(info.render(info.collect()))
"""


@pytest.mark.parametrize("fault", members(["half", "zeros", "capability"], fast=["half"]))
def test_reference_runs_without_the_library(fault, tmp_path):
    """A library whose second half is missing or zero would crash the loader; "sse9" is not a capability."""
    real = native_libraries.library("_cpu")
    if real is None:
        pytest.skip(native_libraries.why_not_built("_cpu"))
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    package = shutil.copytree(ROOT / "qacg_kernels", tmp_path / "qacg_kernels", ignore=ignored)
    data = real.read_bytes()
    half = data[: len(data) // 2]
    contents = {"half": half, "zeros": half + bytes(len(data) - len(half)), "capability": data}
    (package / "_cpu.so").write_bytes(contents[fault])
    variables = {"QACG_CPU_CAPABILITY": "sse9"} if fault == "capability" else {}
    output = run_python("-c", CALL, cwd=tmp_path, paths=(tmp_path,), **variables).stdout
    assert float(output.split()[0]) == 16.0
    (line,) = [line for line in output.splitlines() if line.startswith("cpu library")]
    expected = {
        "half": f"expected {len(data):,} bytes",
        "zeros": "expected a section table",
        "capability": "QACG_CPU_CAPABILITY: expected plain",
    }
    assert "not in use" in line
    assert expected[fault] in line

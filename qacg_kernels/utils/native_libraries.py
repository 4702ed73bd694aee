"""The compiled libraries of the package, and why one may be missing or unusable."""

import json
import platform
import struct
from pathlib import Path

import torch

# The oldest torch whose stable ABI has everything that the libraries use; distributions/native builds them for it.
OLDEST_TORCH = (2, 10)

_PACKAGE = Path(__file__).resolve().parents[1]
_HEADERS = 1 << 16  # bytes to read from the start of a file; they include the headers that give the file's length
_STRING_TABLE = 3  # SHT_STRTAB: the section that holds the names of the sections
_ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
_MACH_O_MACHINES = {0x01000007: "x86_64", 0x0100000C: "arm64"}
_REINSTALL = "Reinstall the package"
_SAME_MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}


def library(name: str) -> Path | None:
    """Path of the library with this name, "_cpu" or "_cuda"; None if it was not built."""
    path = _PACKAGE / f"{name}.so"
    return path if path.exists() else None


def why_not_built(name: str) -> str:
    """The reason why a library is missing: the one that the build recorded, or that the library was not built."""
    note = _PACKAGE / f"_build{name}.json"
    return json.loads(note.read_text())["reason"] if note.exists() else "it was not built at installation"


def why_not_loadable(path: Path) -> str | None:
    """Why a library must not be loaded; None if it may be.

    Loading a truncated file would end the process with a bus error, because the loader reads the length that the header
    declares.
    """
    version = torch.__version__.split("+")[0]
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return f"torch: expected {oldest} or newer, got {torch.__version__}. Run pip install 'torch>={oldest}'"
    with path.open("rb") as handle:
        data = handle.read(_HEADERS)
    there = path.stat().st_size
    try:
        machine, size = _elf(data) if data[:4] == b"\x7fELF" else _mach_o(data)
    except (struct.error, ValueError):
        return f"{path.name}: expected a library, got a file of {there:,} bytes without its headers. {_REINSTALL}"
    if there < size:
        return f"{path.name}: expected {size:,} bytes, got {there:,}. {_REINSTALL}"
    if data[:4] == b"\x7fELF" and not _has_sections(path, data):
        return f"{path.name}: expected a section table at the end of {there:,} bytes, got none. {_REINSTALL}"
    if _same(machine) != _same(platform.machine()):
        return (
            f"{path.name}: expected code for {platform.machine()}, like this Python, got {machine}. {_REINSTALL} on "
            "this machine"
        )
    return None


def _same(machine: str) -> str:
    return _SAME_MACHINE.get(machine.lower(), machine.lower())


def _elf(data: bytes) -> tuple[str, int]:
    """The machine type and the file size in bytes that the header of a 64-bit ELF file declares.

    Args:
        data: the first bytes of the file.
    """
    if data[4:6] != b"\x02\x01":
        raise ValueError("expected a 64-bit little-endian ELF file, got another")
    (number,) = struct.unpack_from("<H", data, 18)
    programs, sections = struct.unpack_from("<QQ", data, 32)
    program_size, program_count, section_size, section_count = struct.unpack_from("<HHHH", data, 54)
    size = max(programs + program_size * program_count, sections + section_size * section_count)
    return _ELF_MACHINES.get(number, f"ELF machine {number}"), size


def _has_sections(path: Path, data: bytes) -> bool:
    """Whether an ELF file has its section table, which is at its end.

    An interrupted copy of a file may have the full length, but zeros at the end.
    """
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    if not count:
        return True
    with path.open("rb") as handle:
        handle.seek(table + size * names + 4)
        return handle.read(4) == struct.pack("<I", _STRING_TABLE)


def _mach_o(data: bytes) -> tuple[str, int]:
    """The machine type and the file size in bytes that the header of a 64-bit Mach-O file declares.

    Args:
        data: the first bytes of the file.
    """
    magic, number, _, _, commands = struct.unpack_from("<IIIII", data)
    if magic != 0xFEEDFACF:
        raise ValueError(f"expected a 64-bit Mach-O file, got one that begins with {magic:#x}")
    size, at = 0, 32
    for _ in range(commands):
        command, length = struct.unpack_from("<II", data, at)
        if command == 0x19:  # LC_SEGMENT_64
            offset, in_file = struct.unpack_from("<QQ", data, at + 40)
            size = max(size, offset + in_file)
        at += length
    return _MACH_O_MACHINES.get(number, f"Mach-O machine {number:#x}"), size

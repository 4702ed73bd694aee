"""What a certificate holds for: everything that can change what a kernel does, as text."""

import functools
import hashlib
import json
import re
from importlib import metadata
from pathlib import Path

import torch

from qacg_kernels import processor
from qacg_kernels.backends import cpu
from qacg_kernels.backends.triton.configurations import saved_path

_PACKAGE = Path(__file__).resolve().parents[1]
# The kernels, their tiles, the library, and the proof itself: a stricter proof asks for a new certificate.
_SOURCES = (
    "backends/triton/*.py",
    "backends/triton/tables/*.json",
    "backends/cuda/*.py",
    "proving/*.py",
    "testing*.py",
)
_LIBRARIES = {"cuda": ("_cuda.*", "_cuda_*"), "cpu": ("_cpu.*",)}


def environment_of(device: torch.device) -> dict[str, str]:
    """The environment of a device; the same text on two machines means that a proof on one holds on the other."""
    return {
        **_hardware(device),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "package": _version("qacg-kernels"),
        "kernels": _digest(_SOURCES),
        "library": _digest(_LIBRARIES.get(device.type, ())),
        "tuned tiles": _tuned_tiles(device),
    }


def digest_of(environment: dict[str, str]) -> str:
    """A short name for an environment, for the file of its certificate."""
    return hashlib.blake2b(json.dumps(environment, sort_keys=True).encode(), digest_size=10).hexdigest()


def _hardware(device: torch.device) -> dict[str, str]:
    if device.type != "cuda":
        none = dict.fromkeys(("capability", "driver", "cuda"), "none")
        return {**none, "device": processor.model(), "capability": _instruction_sets()}
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(),
        "cuda": str(torch.version.cuda),
    }


def _instruction_sets() -> str:
    if cpu.missing():
        return "none"
    return ", ".join(f"{dtype} on {name}" for dtype, name in cpu.instruction_sets().items())


@functools.cache
def _driver() -> str:
    """The driver's own version where the system tells it, else the newest CUDA that it serves."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return str(torch._C._cuda_getDriverVersion()) if hasattr(torch._C, "_cuda_getDriverVersion") else "unknown"
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return found.group() if found else text.splitlines()[0][:80]


@functools.cache
def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "none"


@functools.cache
def _digest(patterns: tuple[str, ...]) -> str:
    total = hashlib.blake2b(digest_size=10)
    for path in sorted({path for pattern in patterns for path in _PACKAGE.glob(pattern) if path.is_file()}):
        total.update(path.relative_to(_PACKAGE).as_posix().encode())
        total.update(path.read_bytes())
    return total.hexdigest()


def _tuned_tiles(device: torch.device) -> str:
    """Of the table that was tuned for this very GPU, which is preferred to the shipped one where it is there."""
    path = saved_path(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    try:
        return "none" if path is None else hashlib.blake2b(path.read_bytes(), digest_size=10).hexdigest()
    except OSError:
        return "none"

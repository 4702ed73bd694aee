"""Which libraries are built, and why one is not."""

import importlib.util
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from native import compilers, cpu, cuda, environment, ninja_file, platforms, stable_abi


def why_no_library() -> str | None:
    """Why no library at all can be built here, or None."""
    try:
        import torch
    except ImportError:
        return (
            "torch was not there at installation (pip's build isolation hides it): "
            "install torch and ninja first, then pip install --no-build-isolation"
        )
    if tuple(map(int, torch.__version__.split(".")[:2])) < stable_abi.OLDEST_TORCH:
        return f"torch {torch.__version__} has not the headers for it: build with torch 2.10 or newer"
    if ninja_file.ninja() is None:
        return "ninja was not found at installation"
    if platforms.target() and importlib.util.find_spec("ziglang") is None:
        return "QACG_BUILD_FOR was set, and the package ziglang, whose compiler it takes, is not installed"
    cxx = compilers.compiler()
    if cxx is None or not shutil.which(shlex.split(cxx)[0]):
        return f"no C++ compiler was found at installation (looked for {cxx or 'c++, g++, clang++'})"
    return None


class Library(NamedTuple):
    """A library of the package: what asks for it, if it must, why it can't be built, what writes its ninja file."""

    variable: str
    unasked: bool
    why_not: Callable[[], str | None]
    write_ninja: Callable[[Path, Path], None]


LIBRARIES = {
    "_cpu": Library("QACG_BUILD_CPU", True, lambda: None, cpu.write_ninja),
    "_cuda": Library("QACG_BUILD_CUDA", False, cuda.why_not, cuda.write_ninja),
}


def why_not_built(wanted: Library) -> str | None:
    """Why a library is not built, with what asks for it, or None if it is to be built."""
    if platforms.platform_tag() == "any" or (platforms.target() and wanted.variable != "QACG_BUILD_CPU"):
        return (
            f"the wheel has none; with torch, ninja and a compiler there, {wanted.variable}=1 pip install "
            "--no-build-isolation --no-binary qacg-kernels qacg-kernels builds it"
        )
    wish = environment.asked(wanted.variable)
    if wish == "0":
        return f"{wanted.variable}=0 was set at installation"
    reason = why_no_library() or wanted.why_not()
    if wish == "1" or wanted.unasked:
        return reason
    reason = reason or "it takes minutes, and nothing asked for it"
    return f"{reason}; {wanted.variable}=1 pip install --no-build-isolation . builds it"


def note(name: str) -> str:
    """Where qacg_kernels/libraries.py looks for the reason why a library was not built."""
    return f"_build{name}.json"

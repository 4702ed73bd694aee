"""Which libraries are built, and why one is not."""

import importlib.util
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from native import compilers, cpu, cuda, environment, ninja_file, platforms, torch_headers


def why_no_library() -> str | None:
    """Why no library at all can be built here, or None."""
    if reason := torch_headers.why_not():
        return reason
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
        return f"this wheel has none; {install_command(wanted)} builds it"
    wish = environment.asked(wanted.variable)
    if wish == "0":
        return f"{wanted.variable}=0 was set at installation"
    reason = why_no_library() or wanted.why_not()
    if wish == "1" or (wanted.unasked and reason is None):
        return reason
    return f"{reason or 'it takes minutes, and nothing asked for it'}; {install_command(wanted)} builds it"


def must_be_built(library: Library) -> bool:
    """Whether a library belongs to an installation for which nobody has said otherwise."""
    return library.unasked and platforms.platform_tag() != "any" and environment.asked(library.variable) != "0"


def install_command(library: Library) -> str:
    """The command that builds a library or fails.

    pip's cache may hold a wheel without the library, so the command does not use it. The CUDA library is built against
    the installed torch, which pip's build isolation hides.
    """
    isolation = "" if library.write_ninja is cpu.write_ninja else "--no-build-isolation "
    return f"{library.variable}=1 pip install --no-cache-dir {isolation}. in a checkout"


def note(name: str) -> str:
    """Where qacg_kernels/utils/native_libraries.py looks for the reason why a library was not built."""
    return f"_build{name}.json"

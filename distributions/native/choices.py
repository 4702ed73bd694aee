"""Decides which libraries are built, and gives the reason when one is not."""

import importlib.util
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from native import compilers, cpu, cuda, environment, ninja_file, platforms, torch_headers


def why_no_library() -> str | None:
    """The reason why no library can be built on this machine; None if libraries can be built."""
    if reason := torch_headers.why_not():
        return reason
    if ninja_file.ninja() is None:
        return "ninja was not found at installation"
    if platforms.target() and importlib.util.find_spec("ziglang") is None:
        return "QACG_BUILD_FOR requires the compiler of the package ziglang, which is not installed"
    cxx = compilers.compiler()
    if cxx is None or not shutil.which(shlex.split(cxx)[0]):
        return f"no C++ compiler was found at installation (looked for {cxx or 'c++, g++, clang++'})"
    return None


class Library(NamedTuple):
    """A compiled library of the package.

    Attributes:
        variable: environment variable that controls the build.
        by_default: whether the library is built when the variable is not set.
        why_not: returns the reason why it cannot be built; None if it can.
        write_ninja: writes its ninja file; takes the paths of that file and of the library.
    """

    variable: str
    by_default: bool
    why_not: Callable[[], str | None]
    write_ninja: Callable[[Path, Path], None]


LIBRARIES = {
    "_cpu": Library("QACG_BUILD_CPU", True, lambda: None, cpu.write_ninja),
    "_cuda": Library("QACG_BUILD_CUDA", False, cuda.why_not, cuda.write_ninja),
}


def why_not_built(library: Library) -> str | None:
    """The reason why a library is not built; None if it is built.

    If the environment variable is "auto" or not set, the reason ends with the command that builds the library.
    """
    other = platforms.target()
    if platforms.platform_tag() == "any" or (other and not other.has_cuda and not library.by_default):
        name = library.variable.rpartition("_")[2]
        return f"this wheel has no compiled {name} library; {install_command(library)} builds it"
    value = environment.build_option(library.variable)
    if value == "0":
        return f"{library.variable}=0 was set at installation"
    reason = why_no_library() or library.why_not()
    if value == "1" or (library.by_default and reason is None):
        return reason
    return f"{reason or 'it takes minutes and is built on request only'}; {install_command(library)} builds it"


def must_be_built(library: Library) -> bool:
    """Whether an installation without this library is incomplete."""
    return (
        library.by_default and platforms.platform_tag() != "any" and environment.build_option(library.variable) != "0"
    )


def install_command(library: Library) -> str:
    """The command that installs the package with a library; it fails if the library cannot be built.

    The command does not use pip's cache, which may have a wheel without the library.
    """
    return f"{library.variable}=1 pip install --no-cache-dir . in a checkout"


def note(name: str) -> str:
    """The name of the file with the reason for a missing library, which utils/native_libraries.py reads."""
    return f"_build{name}.json"

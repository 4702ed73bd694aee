"""Commands of setuptools: build_ext with ninja, and wheels that fit every Python.

A library that is not built leaves a file with the reason, which utils/native_libraries.py reads.
"""

import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

from native import compilers, cpu, cuda, environment, torch_headers

PACKAGE = compilers.ROOT / "qacg_kernels"


def why_no_library() -> str | None:
    """The reason why no library can be built on this machine; None if libraries can be built."""
    if reason := torch_headers.why_not():
        return reason
    if compilers.ninja() is None:
        return "ninja was not found at installation"
    if environment.target() and importlib.util.find_spec("ziglang") is None:
        return "QACG_BUILD_FOR requires the compiler of the package ziglang, which is not installed"
    cxx = compilers.compiler()
    if cxx is None or not shutil.which(shlex.split(cxx)[0]):
        return f"no C++ compiler was found at installation (looked for {cxx or 'c++, g++, clang++'})"
    return None


class Library(NamedTuple):
    """A compiled library of the package."""

    variable: str  # the environment variable that controls the build
    by_default: bool  # whether the library is built when the variable is not set
    why_not: Callable[[], str | None]  # returns the reason why it cannot be built; None if it can
    write_ninja: Callable[[Path, Path], None]  # takes the paths of the ninja file and of the library


LIBRARIES = {
    "_cpu": Library("QACG_BUILD_CPU", True, lambda: None, cpu.write_ninja),
    "_launch": Library("QACG_BUILD_CPU", True, lambda: None, cpu.write_launch_ninja),
    "_cuda": Library("QACG_BUILD_CUDA", False, cuda.why_not, cuda.write_ninja),
}


def why_not_built(library: Library) -> str | None:
    """The reason why a library is not built; None if it is built.

    If the environment variable is "auto" or not set, the reason ends with the command that builds the library.
    """
    other = environment.target()
    if environment.platform_tag() == "any" or (other and not other.has_cuda and not library.by_default):
        name = library.variable.rpartition("_")[2]
        return f"this wheel has no compiled {name} library; {install_command(library)} builds it"
    value = environment.build_option(library.variable)
    if value == "0":
        return f"{library.variable}=0 was set at installation"
    reason = why_no_library() or library.why_not()
    if value == "1" or (library.by_default and reason is None):
        return reason
    return f"{reason or 'it takes minutes and is built on request only'}; {install_command(library)} builds it"


def install_command(library: Library) -> str:
    """The command that installs the package with a library; it fails if the library cannot be built.

    pip's cache may have a wheel without the library.
    """
    return f"{library.variable}=1 pip install --no-cache-dir . in a checkout"


def note(name: str) -> str:
    """The name of the file with the reason for a missing library, which utils/native_libraries.py reads."""
    return f"_build{name}.json"


def run_ninja(library: Library, folder: Path, path: Path) -> None:
    """Compiles and links a library."""
    jobs = environment.jobs()
    library.write_ninja(folder / "build.ninja", path)
    subprocess.run([compilers.ninja(), "-C", str(folder), *(["-j", str(jobs)] if jobs else [])], check=True)


class BuildWithNinja(build_ext):
    """The command build_ext: runs ninja, or stores the reason why a library is not built."""

    def get_ext_filename(self, fullname):
        # Without Python's version in the name: torch loads the libraries, and they use no symbols of Python.
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext):
        name = ext.name.rpartition(".")[2]
        library, path = LIBRARIES[name], Path(self.get_ext_fullpath(ext.name)).resolve()
        for stale in (path, path.parent / note(name)):
            stale.unlink(missing_ok=True)
        reason = why_not_built(library)
        if reason:
            option = environment.build_option(library.variable)
            if option == "1":
                raise RuntimeError(f"{library.variable}=1, but {reason}")
            # Fails instead of building a wheel without the library, which pip would cache.
            required = library.by_default and option == "auto" and environment.platform_tag() != "any"
            if required and (missing := torch_headers.why_not()):
                raise RuntimeError(missing)
            print(f"qacg_kernels: {path.name} is not built: {reason}", file=sys.stderr)
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / note(name)).write_text(json.dumps({"reason": reason}))
            return
        folder = Path(self.build_temp).resolve() / name
        folder.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        run_ninja(library, folder, path)

    def get_outputs(self):
        # If a library is not built, its output is the file with the reason.
        built = (Path(p) for p in super().get_outputs())
        return [str(p if p.exists() else p.parent / note(p.name.partition(".")[0])) for p in built]

    def copy_extensions_to_source(self):
        for name in LIBRARIES:
            for file in (note(name), Path(self.get_ext_filename(name)).name):
                built = Path(self.build_lib) / "qacg_kernels" / file
                (PACKAGE / file).unlink(missing_ok=True)
                if built.exists():
                    unfinished = PACKAGE / f"{file}.unfinished"
                    shutil.copy2(built, unfinished)
                    unfinished.replace(PACKAGE / file)


class Wheel(bdist_wheel):
    """The command bdist_wheel: one wheel for all versions of Python, and for all platforms if it has no library."""

    def run(self):
        self.run_command("build")
        self.skip_build = True
        if not any((Path(self.get_finalized_command("build").build_lib) / "qacg_kernels").glob("*.so")):
            self.root_is_pure = True
            self.distribution.ext_modules = []  # so that the wheel is a pure one
        super().run()

    def get_tag(self):
        if self.root_is_pure:
            return "py3", "none", "any"
        return "py3", "none", environment.platform_tag() if environment.target() else super().get_tag()[2]

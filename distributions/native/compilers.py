"""Finds the C++ compiler, Zig's for other platforms, nvcc and ninja, and writes the lines of ninja's files."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from native import environment

ROOT = Path(__file__).resolve().parents[2]
# Flags for every C++ file. Flags that assume that there are no NaN, such as -ffast-math, are forbidden.
COMMON = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]
# Zig's names for these flags.
ZIG_FLAGS = {"-march=armv8-a": "-mcpu=generic", "-march=armv8.2-a+bf16": "-mcpu=generic+v8_2a+bf16"}


def compiler() -> str | None:
    """The command of the C++ compiler; None if there is none."""
    if other := environment.target():
        # -I keeps the current folder off the import path.
        return f"{shlex.quote(sys.executable)} -I -m ziglang c++ -target {other.triple}"
    return os.environ.get("CXX") or next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)


def accepts(flags: list[str]) -> bool:
    """Whether the compiler supports these flags. GCC supports AMX from version 11, bfloat16 on aarch64 from 10."""
    command = [*shlex.split(compiler()), *translated(flags), "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def translated(flags: list[str]) -> list[str]:
    """Translates flags to the spelling of the compiler: Zig has other names for some."""
    return [ZIG_FLAGS.get(flag, flag) for flag in flags] if environment.target() else flags


def stand_ins(names: tuple[str, ...], folder: Path) -> list[str]:
    """Makes empty libraries with these names in a subfolder; returns the linker flags that record their names only."""
    made = folder / "stand_in"
    made.mkdir(exist_ok=True)
    for name in names:
        # Without -nostdlib Zig would compile a C++ runtime first.
        file = f"lib{name}.so"
        source = ["-x", "c", os.devnull, "-nostdlib", "-shared", f"-Wl,-soname,{file}", "-o", str(made / file)]
        subprocess.run([*shlex.split(compiler()), *source], check=True)
    return [f"-L{made}", *(f"-l{name}" for name in names)]


def hide_symbols(exported: str, folder: Path) -> list[str]:
    """Returns linker flags that hide all symbols except those that match a pattern; writes the file they refer to."""
    file = folder / "exported"
    file.write_text(f"{{ global: {exported}; local: *; }};\n")
    return [f"-Wl,--version-script={file}", "-s"]


def nvcc() -> str | None:
    """Path of nvcc; None if there is none.

    If CUDA_HOME or CUDA_PATH is set, only its folder `bin` is searched; otherwise the folders in PATH, /usr/local/cuda
    and pip's packages.
    """
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        return shutil.which("nvcc", path=str(Path(home) / "bin"))
    folders = ("/usr/local/cuda/bin", *(str(home / "bin") for home in pip_toolkits()))
    return shutil.which("nvcc") or next(filter(None, (shutil.which("nvcc", path=f) for f in folders)), None)


def pip_toolkits() -> list[Path]:
    """The folders of CUDA toolkits with nvcc that pip installed, such as nvidia-cuda-nvcc, in the package `nvidia`.

    Searches the import path, and the environment of this interpreter, which pip's build isolation hides from imports.
    """
    found = importlib.util.find_spec("nvidia")
    parents = [Path(parent) for parent in (found and found.submodule_search_locations) or ()]
    parents += [Path(sysconfig.get_path("purelib")) / "nvidia"]
    found_there = (home for parent in parents for home in sorted(parent.glob("cu[0-9]*"), reverse=True))
    return [home for home in found_there if (home / "bin/nvcc").exists()]  # a CUDA torch brings libraries only


def nvcc_version(path: str) -> tuple[int, int]:
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release (\d+)\.(\d+)", text)
    if release is None:
        raise RuntimeError(f"{path} --version: expected a line with 'release X.Y', got {text!r}")
    return int(release[1]), int(release[2])


def ninja() -> str | None:
    """Path of ninja, from PATH or its package; None if there is none."""
    if found := shutil.which("ninja"):
        return found
    try:
        import ninja
    except ImportError:
        return None
    return str(Path(ninja.BIN_DIR) / "ninja")


def escaped(flags: list[str]) -> str:
    return " ".join(shlex.quote(f) for f in flags).replace("$", "$$")


def without_machine_paths(headers: Path) -> list[str]:
    """Compiler flags that make the paths of sources and of torch's headers relative in a library's error messages."""
    return [f"-ffile-prefix-map={headers}=torch", f"-ffile-prefix-map={ROOT}/="]


def rules(link: str) -> list[str]:
    return [
        "ninja_required_version = 1.5",
        f"cxx = {compiler()}",
        "rule compile",
        "  command = $cxx -MMD -MF $out.d $flags -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        f"  command = {link} -o $out.unfinished && mv $out.unfinished $out",
    ]


def compile_edge(rule: str, source: str, target: Path, flags: list[str]) -> list[str]:
    return [f"build {escaped_path(target)}: {rule} {escaped_path(ROOT / source)}", f"  flags = {escaped(flags)}"]


def link_edge(library: Path, objects: list[Path]) -> list[str]:
    return [f"build {escaped_path(library)}: link {' '.join(map(escaped_path, objects))}", ""]


def escaped_path(p: Path) -> str:
    return str(p).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")

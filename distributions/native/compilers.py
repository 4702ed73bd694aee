"""The C++ compiler of this machine, Zig's for other platforms, and nvcc."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from native import platforms

# Flags of every C++ file. None may assume that NaN does not occur.
COMMON = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]
# Zig's names for these flags.
ZIG_FLAGS = {"-march=armv8-a": "-mcpu=generic", "-march=armv8.2-a+bf16": "-mcpu=generic+v8_2a+bf16"}


def compiler() -> str | None:
    """Command of the C++ compiler, or None."""
    if other := platforms.target():
        # -I keeps the current folder off the import path.
        return f"{shlex.quote(sys.executable)} -I -m ziglang c++ -target {other.triple}"
    return os.environ.get("CXX") or next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)


def accepts(flags: list[str]) -> bool:
    """Whether the compiler has these flags (GCC has AMX since version 11, bfloat16 on aarch64 since version 10)."""
    command = [*shlex.split(compiler()), *translated(flags), "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def translated(flags: list[str]) -> list[str]:
    """Flags in the spelling of the compiler."""
    return [ZIG_FLAGS.get(flag, flag) for flag in flags] if platforms.target() else flags


def stand_in(name: str, folder: Path) -> Path:
    """Makes a folder with an empty library of that name, to link against in place of the one found at run time."""
    made = folder / "stand_in"
    made.mkdir(exist_ok=True)
    # Without -nostdlib Zig would compile a C++ runtime first.
    file = f"lib{name}.so"
    source = ["-x", "c", os.devnull, "-nostdlib", "-shared", f"-Wl,-soname,{file}", "-o", str(made / file)]
    subprocess.run([*shlex.split(compiler()), *source], check=True)
    return made


def nvcc() -> str | None:
    """Path of the CUDA compiler, or None: of CUDA_HOME, else on the path, in /usr/local/cuda or of pip's packages."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        return shutil.which("nvcc", path=str(Path(home) / "bin"))
    folders = ("/usr/local/cuda/bin", *(str(home / "bin") for home in pip_toolkits()))
    return shutil.which("nvcc") or next(filter(None, (shutil.which("nvcc", path=f) for f in folders)), None)


def pip_toolkits() -> list[Path]:
    """The folders of a CUDA toolkit of pip's packages, such as nvidia-cuda-nvcc, which share the package `nvidia`."""
    found = importlib.util.find_spec("nvidia")
    parents = (found and found.submodule_search_locations) or ()
    return [home for parent in parents for home in sorted(Path(parent).glob("cu[0-9]*"), reverse=True)]


def nvcc_version(path: str) -> tuple[int, int]:
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release (\d+)\.(\d+)", text)
    if release is None:
        raise RuntimeError(f"{path} --version: expected a release, got {text!r}")
    return int(release[1]), int(release[2])

"""The compilers: C++'s on this machine or Zig's for another, and CUDA's."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from native import platforms

# What every C++ file gets. No flag may assume that NaN does not occur.
COMMON = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]
# Zig has its own names for these.
ZIG_FLAGS = {"-march=armv8-a": "-mcpu=generic", "-march=armv8.2-a+bf16": "-mcpu=generic+v8_2a+bf16"}


def compiler() -> str | None:
    if other := platforms.target():
        # -I: without the current folder on the import path.
        return f"{shlex.quote(sys.executable)} -I -m ziglang c++ -target {other.triple}"
    wanted = os.environ.get("CXX")
    return wanted or next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)


def accepts(flags: list[str]) -> bool:
    """Whether the compiler knows these flags (GCC does AMX from version 11, bfloat16 on aarch64 from version 10)."""
    command = [*shlex.split(compiler()), *known_as(flags), "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def known_as(flags: list[str]) -> list[str]:
    """Flags as the compiler has them."""
    return [ZIG_FLAGS.get(flag, flag) for flag in flags] if platforms.target() else flags


def stand_in(name: str, folder: Path) -> Path:
    """A folder with an empty library of that name, for a library that will find the real one where it is loaded."""
    made = folder / "stand_in"
    made.mkdir(exist_ok=True)
    # Without -nostdlib Zig would first compile a C++ runtime for it.
    file = f"lib{name}.so"
    source = ["-x", "c", os.devnull, "-nostdlib", "-shared", f"-Wl,-soname,{file}", "-o", str(made / file)]
    subprocess.run([*shlex.split(compiler()), *source], check=True)
    return made


def nvcc() -> str | None:
    """Path of the CUDA compiler, or None."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        return shutil.which("nvcc", path=str(Path(home) / "bin"))
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def nvcc_version(path: str) -> tuple[int, int]:
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release (\d+)\.(\d+)", text)
    if release is None:
        raise RuntimeError(f"{path} --version names no release: {text!r}")
    return int(release[1]), int(release[2])

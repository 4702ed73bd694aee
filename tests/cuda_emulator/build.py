"""Compiles csrc/cuda, host half and kernels, for the emulator: a library whose operators run on CPU tensors."""

import concurrent.futures
import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
CSRC = ROOT / "csrc"
OUT = ROOT / "build/cuda_emulator"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fno-math-errno", "-DQACG_EMULATED", f"-I{HERE}")
# The fibers' stacks look like jumps over frames to the checked longjmp.
QUIET = ("-Wall", "-Wno-unknown-pragmas", "-U_FORTIFY_SOURCE")


def compiler() -> str | None:
    """Returns the C++ compiler: CXX, or one on the path; None without one."""
    return os.environ.get("CXX") or next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)


def library() -> Path:
    """Returns the path of the library, after building it unless its sources are unchanged."""
    torch_flags = [f"-isystem{p}" for p in include_paths()] + ["-DTORCH_TARGET_VERSION=0x0209000000000000"]
    flags = {CSRC / "cuda/attention.cpp": tuple(torch_flags)}
    flags |= {kernel: ("-x", "c++") for kernel in sorted((CSRC / "cuda").glob("*.cu"))}
    links = [f"-L{p}" for p in library_paths()] + ["-ltorch_cpu", "-lc10"]
    return _built("cuda_emulated", flags, links)


def single(source: Path, flags: tuple[str, ...]) -> Path:
    """Returns the path of a library of one source without torch, after building it unless the source is unchanged."""
    return _built(source.stem, {source: ()}, [], flags)


def _built(name: str, sources: dict, links: list[str], flags: tuple = FLAGS) -> Path:
    digest = hashlib.sha256(repr((flags, list(sources.values()), torch.__version__)).encode())
    headers = [*(CSRC / "cuda").glob("*.h"), *(CSRC / "common").glob("*.h"), *HERE.glob("*.h")]
    for path in (*sorted(headers), *sources):
        digest.update(path.name.encode() + path.read_bytes())
    folder = OUT / f"{name}-{digest.hexdigest()[:16]}"
    built = folder / f"{name}.so"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # files of tests that run at once want the same library: one builds it
        if built.exists():
            return built
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda s: _compile(s, [*flags, f"-I{CSRC}", *sources[s]], folder), sources))
        unfinished = folder / "unfinished.so"
        _run([compiler(), "-shared", *map(str, objects), *links, "-o", str(unfinished)])
        unfinished.rename(built)
    return built


def _compile(source: Path, flags: list[str], folder: Path) -> Path:
    target = folder / f"{source.stem}.o"
    _run([compiler(), *QUIET, *flags, "-c", str(source), "-o", str(target)])
    return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")

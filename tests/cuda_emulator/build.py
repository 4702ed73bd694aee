"""Compiles csrc/cuda, host half and kernels, for the emulator: a library whose operators run on CPU tensors."""

import concurrent.futures
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
KERNELS = tuple(sorted((ROOT / "csrc/cuda").glob("*.cu")))
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fno-math-errno", "-DQACG_EMULATED", f"-I{HERE}")
# The fibers' stacks look like jumps over frames to the checked longjmp.
QUIET = ("-Wall", "-Wno-unknown-pragmas", "-U_FORTIFY_SOURCE")


def compiler() -> str | None:
    """The C++ compiler, or None."""
    return os.environ.get("CXX") or next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)


def library() -> Path:
    """Path of the library, built now unless one of the same sources is there."""
    headers = [*(ROOT / "csrc/cuda").iterdir(), *(ROOT / "csrc/common").iterdir(), *HERE.glob("*.h")]
    digest = hashlib.sha256(repr((FLAGS, torch.__version__)).encode())
    for path in sorted(p for p in headers if p.suffix in (".h", ".cu", ".cpp")):
        digest.update(path.name.encode() + path.read_bytes())
    folder = ROOT / "build/cuda_emulator" / digest.hexdigest()[:16]
    built = folder / "cuda_emulated.so"
    if built.exists():
        return built
    folder.mkdir(parents=True, exist_ok=True)
    torch_flags = [f"-isystem{p}" for p in include_paths()] + ["-DTORCH_TARGET_VERSION=0x0209000000000000"]
    sources = {ROOT / "csrc/cuda/attention.cpp": torch_flags, **{k: ["-x", "c++"] for k in KERNELS}}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda s: _compile(s, sources[s], folder), sources))
    unfinished = folder / "unfinished.so"
    links = [f"-L{p}" for p in library_paths()] + ["-ltorch_cpu", "-lc10"]
    _run([compiler(), "-shared", *map(str, objects), *links, "-o", str(unfinished)])
    unfinished.rename(built)
    return built


def single(source: Path, flags: tuple[str, ...] = FLAGS) -> Path:
    """Path of a library of one source that needs no torch, built now unless one of the same text is there."""
    digest = hashlib.sha256(repr(flags).encode())
    for path in sorted([source, *(ROOT / "csrc").glob("c*/*.h"), *HERE.glob("*.h")]):
        digest.update(path.name.encode() + path.read_bytes())
    built = ROOT / "build/cuda_emulator" / f"{source.stem}-{digest.hexdigest()[:16]}.so"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        unfinished = built.with_suffix(".unfinished")
        _run([compiler(), *flags, *QUIET, "-shared", "-x", "c++", str(source), "-o", str(unfinished)])
        unfinished.rename(built)
    return built


def _compile(source: Path, flags: list[str], folder: Path) -> Path:
    target = folder / f"{source.stem}.o"
    _run([compiler(), *FLAGS, *QUIET, *flags, "-c", str(source), "-o", str(target)])
    return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")

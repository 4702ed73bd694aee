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
DETECTOR = HERE / "race_detector.cpp"
# With the race detector: line numbers for its reports, and before each access to memory a call of its hooks, which the
# linker would otherwise find in the compiler's own library.
RACES = ("-g1", "-DQACG_RACES")
HOOKED = ("-fsanitize=thread",)
# The fibers' stacks look like jumps over frames to the checked longjmp.
QUIET = ("-Wall", "-Wno-unknown-pragmas", "-U_FORTIFY_SOURCE")


def compiler() -> str | None:
    """Returns the C++ compiler: CXX, or one on the path; None without one."""
    return os.environ.get("CXX") or next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)


def detects_races() -> bool:
    """Returns whether the compiler is GCC. The race detector does not have the hooks of Clang."""
    if compiler() is None:
        return False
    command = [compiler(), "-dM", "-E", "-x", "c++", os.devnull]
    return "__clang__" not in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def library(csrc: Path = CSRC, races: bool = False) -> Path:
    """Returns the path of the library, after building it unless its sources are unchanged.

    csrc: folder of the sources, possibly a changed copy. races: with the race detector.
    """
    torch_flags = [f"-isystem{p}" for p in include_paths()] + ["-DTORCH_TARGET_VERSION=0x0209000000000000"]
    extra = RACES if races else ()
    flags = {csrc / "cuda/attention.cpp": (*torch_flags, *extra)}
    for kernel in sorted((csrc / "cuda").glob("*.cu")):
        flags[kernel] = (*extra, *(HOOKED if races else ()), "-x", "c++")
    links = [f"-L{p}" for p in library_paths()] + ["-ltorch_cpu", "-lc10"]
    return _built("cuda_emulated", csrc, flags, links, races)


def single(source: Path, flags: tuple[str, ...]) -> Path:
    """Returns the path of a library of one source without torch, after building it unless the source is unchanged."""
    return _built(source.stem, CSRC, {source: ()}, [], False, flags)


def _built(name: str, csrc: Path, sources: dict, links: list[str], races: bool, flags: tuple = FLAGS) -> Path:
    if races:
        sources = {**sources, DETECTOR: RACES}
        links = [*links, "-ldl", "-Wl,-z,defs"]
    digest = hashlib.sha256(repr((flags, list(sources.values()), torch.__version__)).encode())
    headers = [*(csrc / "cuda").glob("*.h"), *(csrc / "common").glob("*.h"), *HERE.glob("*.h")]
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
            objects = list(pool.map(lambda s: _compile(s, [*flags, f"-I{csrc}", *sources[s]], folder), sources))
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

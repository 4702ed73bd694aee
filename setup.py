"""Builds the compiled CPU library with ninja: one translation unit per instruction set, chosen at run time.

Environment:
    QACG_BUILD_CPU   auto (default: build if torch, ninja and a C++ compiler are there), 1 (fail if not), 0 (never)
    CXX              the compiler, else c++, g++ or clang++
    MAX_JOBS         compile jobs at a time
    DEBUG            1 for -O0 -g
"""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
NOTE = ROOT / "qacg_kernels" / "_build.json"

# -ffp-contract lets a * b + c become one instruction; no flag may assume that NaN does not occur.
COMMON = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]
KERNEL = ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprfchw", "-mprefer-vector-width=512"]
# at::parallel_for is a header: without OpenMP in this translation unit it would run on one thread.
OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]
# Flags of each translation unit; one without an entry for this machine is left out.
SOURCES = {
    "csrc/cpu/attention.cpp": [],
    "csrc/cpu/kernels_plain.cpp": KERNEL,
    "csrc/cpu/kernels_avx2.cpp": [*KERNEL, "-mavx2", "-mfma"],
    "csrc/cpu/kernels_avx512.cpp": [*KERNEL, *AVX512],
    "csrc/cpu/kernels_avx512_bf16.cpp": [*KERNEL, *AVX512, "-mavx512bf16"],
    "csrc/cpu/kernels_amx.cpp": [*KERNEL, *AVX512, "-mamx-tile", "-mamx-bf16"],
}
X86_ONLY = ("avx2", "avx512", "amx")
AMX_SOURCE = "csrc/cpu/kernels_amx.cpp"


def compiler() -> str | None:
    wanted = os.environ.get("CXX")
    return wanted or next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)


def accepts(flags: list[str]) -> bool:
    """Whether the compiler knows these flags (GCC does AMX from version 11)."""
    command = [*shlex.split(compiler()), *flags, "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def why_not() -> str | None:
    """Why the library can't be built here, or None."""
    if os.environ.get("QACG_BUILD_CPU", "auto") == "0":
        return "QACG_BUILD_CPU=0 was set at installation"
    try:
        import torch  # noqa: F401
    except ImportError:
        return (
            "torch was not there at installation (pip's build isolation hides it): "
            "install torch and ninja first, then pip install --no-build-isolation"
        )
    if not shutil.which("ninja") and not _ninja_module():
        return "ninja was not found at installation"
    cxx = compiler()
    if cxx is None or not shutil.which(shlex.split(cxx)[0]):
        return f"no C++ compiler was found at installation (looked for {cxx or 'c++, g++, clang++'})"
    return None


def _ninja_module() -> str | None:
    try:
        import ninja
    except ImportError:
        return None
    return str(Path(ninja.BIN_DIR) / "ninja")


def write_ninja(path: Path, library: Path) -> None:
    import torch
    from torch.utils.cpp_extension import include_paths, library_paths

    machine = platform.machine().lower()
    sources = {
        s: flags
        for s, flags in SOURCES.items()
        if machine in ("x86_64", "amd64") or not any(word in s for word in X86_ONLY)
    }
    without_amx = []
    if AMX_SOURCE in sources and not accepts(sources[AMX_SOURCE]):
        print(f"qacg_kernels: {compiler()} knows no AMX: those kernels are left out", file=sys.stderr)
        del sources[AMX_SOURCE]
        without_amx = ["-DQACG_WITHOUT_AMX"]
    optimise = ["-O0", "-g"] if os.environ.get("DEBUG") == "1" else ["-O3", "-DNDEBUG"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    torch_flags = [f"-isystem{p}" for p in include_paths()] + [abi, *OPENMP, *without_amx]
    links = [f"-L{p}" for p in library_paths()] + ["-ltorch_cpu", "-lc10", *OPENMP]
    if sys.platform == "darwin":
        links += ["-undefined", "dynamic_lookup"]

    def escaped(flags: list[str]) -> str:
        return " ".join(shlex.quote(f) for f in flags).replace("$", "$$")

    lines = [
        "ninja_required_version = 1.5",
        f"cxx = {compiler()}",
        "rule compile",
        "  command = $cxx -MMD -MF $out.d $flags -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        f"  command = $cxx -shared $in {escaped(links)} -o $out",
    ]
    objects = []
    for source, flags in sources.items():
        target = path.parent / (Path(source).stem + ".o")
        # Kernel files see no torch header: see csrc/README.md.
        extra = flags or torch_flags
        lines += [
            f"build {_path(target)}: compile {_path(ROOT / source)}",
            f"  flags = {escaped([*COMMON, *optimise, *extra])}",
        ]
        objects.append(_path(target))
    lines += [f"build {_path(library)}: link {' '.join(objects)}", ""]
    path.write_text("\n".join(lines))


def _path(p: Path) -> str:
    return str(p).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


class BuildWithNinja(build_ext):
    """build_ext that hands the work to ninja, and leaves a note when it can't."""

    def build_extension(self, ext):
        library = Path(self.get_ext_fullpath(ext.name)).resolve()
        for stale in (library, library.parent / NOTE.name):
            stale.unlink(missing_ok=True)
        reason = why_not()
        if reason:
            if os.environ.get("QACG_BUILD_CPU") == "1":
                raise RuntimeError(f"QACG_BUILD_CPU=1, but {reason}")
            print(f"qacg_kernels: no compiled CPU library: {reason}", file=sys.stderr)
            note = library.parent / NOTE.name
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(json.dumps({"reason": reason}))
            return
        folder = Path(self.build_temp).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        library.parent.mkdir(parents=True, exist_ok=True)
        write_ninja(folder / "build.ninja", library)
        jobs = os.environ.get("MAX_JOBS")
        ninja = shutil.which("ninja") or _ninja_module()
        subprocess.run(
            [ninja, "-C", str(folder), *(["-j", jobs] if jobs else [])], check=True
        )

    def get_outputs(self):
        # A skipped build leaves its note where the installer would look for the library.
        built = (Path(p) for p in super().get_outputs())
        return [str(p if p.exists() else p.parent / NOTE.name) for p in built]

    def copy_extensions_to_source(self):
        for name in (NOTE.name, Path(self.get_ext_filename("_cpu")).name):
            built = Path(self.build_lib) / "qacg_kernels" / name
            (NOTE.parent / name).unlink(missing_ok=True)
            if built.exists():
                shutil.copy2(built, NOTE.parent / name)


setup(
    ext_modules=[Extension("qacg_kernels._cpu", sources=list(SOURCES))],
    cmdclass={"build_ext": BuildWithNinja},
)

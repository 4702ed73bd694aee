"""Builds the compiled libraries with ninja: the CPU's, one translation unit per instruction set, and the CUDA one.

Environment:
    QACG_BUILD_CPU        auto (default: build if torch, ninja and a C++ compiler are there), 1 (fail if not), 0 (never)
    QACG_BUILD_CUDA       1 (build it, with nvcc, or fail; a torch without CUDA will do, the library is then for another
                          one), auto (default: do not, and say what asks for it), 0 (never)
    CUDA_HOME             the CUDA toolkit, else that of the nvcc on the path, else /usr/local/cuda
    TORCH_CUDA_ARCH_LIST  GPUs to build for, such as "8.0 9.0 10.0+PTX"; else those three as far as nvcc knows them
    CXX                   the compiler, else c++, g++ or clang++
    MAX_JOBS              compile jobs at a time
    DEBUG                 1 for -O0 -g, and line numbers in GPU code
    QACG_BUILD_FOR        a wheel for one of the platforms in TARGETS, by the compiler in the package ziglang
No GPU is looked for: a machine without one can build for those that have.
"""

import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "qacg_kernels"

# -ffp-contract lets a * b + c become one instruction; no flag may assume that NaN does not occur.
COMMON = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]
KERNEL = ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprfchw", "-mprefer-vector-width=512"]
# Flags of each translation unit; one without an entry for this machine is left out.
SOURCES = {
    "csrc/cpu/attention.cpp": [],
    "csrc/cpu/capability.cpp": [],
    "csrc/cpu/kernels_plain.cpp": KERNEL,
    "csrc/cpu/kernels_avx2.cpp": [*KERNEL, "-mavx2", "-mfma", "-mf16c"],
    "csrc/cpu/kernels_avx512.cpp": [*KERNEL, *AVX512],
    "csrc/cpu/kernels_avx512_bf16.cpp": [*KERNEL, *AVX512, "-mavx512bf16"],
    "csrc/cpu/kernels_amx.cpp": [*KERNEL, *AVX512, "-mamx-tile", "-mamx-bf16"],
    "csrc/cpu/kernels_neon.cpp": [*KERNEL, "-march=armv8-a"],
    "csrc/cpu/kernels_neon_bf16.cpp": [*KERNEL, "-march=armv8.2-a+bf16"],
}
CPU_HOST_SOURCE = "csrc/cpu/attention.cpp"
CUDA_HOST_SOURCE = "csrc/cuda/attention.cpp"
CUDA_SOURCES = (
    "csrc/cuda/about.cu",
    "csrc/cuda/kernels_plain.cu",
    "csrc/cuda/kernels_mma_float16.cu",
    "csrc/cuda/kernels_mma_bfloat16.cu",
    "csrc/cuda/kernels_hopper_float16.cu",
    "csrc/cuda/kernels_hopper_bfloat16.cu",
)
# The libraries want no more than the stable ABI of the oldest torch that they are to run on, which libraries.py names
# too, whatever torch has the headers. The CUDA library's is 2.9's, which makes tensors without looking the operator up
# by its name.
OLDEST_TORCH = (2, 10)
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020a000000000000"
CUDA_STABLE_ABI = "-DTORCH_TARGET_VERSION=0x0209000000000000"
OLDEST_NVCC = (12, 0)
OLDEST_GPU = (8, 0)  # its instructions are those of csrc/cuda/mma.h
# ptxas only tells of it where it cannot keep products of warp groups in flight, and then waits after each.
REFUSE_SERIALISED = (
    "> $out.said 2>&1; status=$$?; cat $out.said; test $$status -eq 0 && "
    "if grep -q 'wgmma.mma_async instructions are serialized' $out.said; then rm -f $out; exit 1; fi"
)
# GPUs built for by default, and the first nvcc that knows each.
DEFAULT_GPUS = {"8.0": (11, 0), "9.0": (11, 8), "10.0": (12, 8)}
# Words in the names of kernels that one kind of machine has, or lacks: every aarch64 has NEON, and needs no plain ones.
X86_ONLY, ARM_ONLY, NOT_ARM = ("avx2", "avx512", "amx"), ("neon",), ("plain",)
# Kernels that an older compiler knows nothing of, and how the choice among kernels is told that they are not there.
OPTIONAL_SOURCES = {
    "csrc/cpu/kernels_amx.cpp": "-DQACG_WITHOUT_AMX",
    "csrc/cpu/kernels_neon_bf16.cpp": "-DQACG_WITHOUT_NEON_BF16",
}


class Target(NamedTuple):
    """A platform that wheels are made for (QACG_BUILD_FOR): its processor, and what the compiler calls it."""

    machine: str
    triple: str

    @property
    def is_linux(self) -> bool:
        return "linux" in self.triple


# By the platform tag of the wheel; "any" is a wheel without a library.
TARGETS = {
    "manylinux_2_28_x86_64": Target("x86_64", "x86_64-linux-gnu.2.28"),
    "manylinux_2_28_aarch64": Target("aarch64", "aarch64-linux-gnu.2.28"),
    "macosx_11_0_arm64": Target("arm64", "aarch64-macos.11.0"),
}
# Zig has its own names for these.
ZIG_FLAGS = {"-march=armv8-a": "-mcpu=generic", "-march=armv8.2-a+bf16": "-mcpu=generic+v8_2a+bf16"}


def platform_tag() -> str | None:
    """The platform that QACG_BUILD_FOR names, None for this machine itself."""
    tag = os.environ.get("QACG_BUILD_FOR")
    if tag and tag != "any" and tag not in TARGETS:
        raise RuntimeError(f"QACG_BUILD_FOR: got {tag!r}, wanted any, {', '.join(TARGETS)}")
    return tag or None


def target() -> Target | None:
    return TARGETS.get(platform_tag() or "")


def machine() -> str:
    """The processor that is built for."""
    other = target()
    return other.machine if other else platform.machine().lower()


def compiler() -> str | None:
    if other := target():
        return f"{shlex.quote(sys.executable)} -m ziglang c++ -target {other.triple}"
    wanted = os.environ.get("CXX")
    return wanted or next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)


def accepts(flags: list[str]) -> bool:
    """Whether the compiler knows these flags (GCC does AMX from version 11, bfloat16 on aarch64 from version 10)."""
    command = [*shlex.split(compiler()), *known_as(flags), "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def known_as(flags: list[str]) -> list[str]:
    """Flags as the compiler has them."""
    return [ZIG_FLAGS.get(flag, flag) for flag in flags] if target() else flags


def asked(variable: str) -> str:
    """The value of QACG_BUILD_CPU or QACG_BUILD_CUDA: "auto", "0" or "1"."""
    value = os.environ.get(variable, "auto")
    if value not in ("auto", "0", "1"):
        raise RuntimeError(f"{variable}: got {value!r}, wanted 0, 1 or auto")
    return value


def why_no_library() -> str | None:
    """Why no library at all can be built here, or None."""
    try:
        import torch
    except ImportError:
        return (
            "torch was not there at installation (pip's build isolation hides it): "
            "install torch and ninja first, then pip install --no-build-isolation"
        )
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST_TORCH:
        return f"torch {torch.__version__} has not the headers for it: build with torch 2.10 or newer"
    if not shutil.which("ninja") and not _ninja_module():
        return "ninja was not found at installation"
    if target() and importlib.util.find_spec("ziglang") is None:
        return "QACG_BUILD_FOR was set, and the package ziglang, whose compiler it takes, is not installed"
    cxx = compiler()
    if cxx is None or not shutil.which(shlex.split(cxx)[0]):
        return f"no C++ compiler was found at installation (looked for {cxx or 'c++, g++, clang++'})"
    return None


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


def gpus(version: tuple[int, int]) -> list[str]:
    """The GPUs to build for, such as "9.0a" or "10.0+PTX"; those without the kernels' instructions are left out."""
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if not listed:
        known = [gpu for gpu, first in DEFAULT_GPUS.items() if version >= first]
        return with_all_of_hopper([*known[:-1], known[-1] + "+PTX"])
    taken = []
    for gpu in re.split(r"[\s;,]+", listed.strip()):
        number = re.fullmatch(r"(\d+)\.(\d+)[af]?(\+PTX)?", gpu)
        if number is None:
            raise RuntimeError(f"TORCH_CUDA_ARCH_LIST: got {gpu!r}, wanted numbers such as '8.0 9.0a 10.0+PTX'")
        if (int(number[1]), int(number[2])) >= OLDEST_GPU:
            taken.append(gpu)
        else:
            print(f"qacg_kernels: the CUDA kernels need compute capability 8.0: left out {gpu}", file=sys.stderr)
    return with_all_of_hopper(taken)


def with_all_of_hopper(gpus: list[str]) -> list[str]:
    """With the instructions that Hopper GPUs have and no later ones (csrc/cuda/wgmma.h) for those that are to be built
    for: 9.0a in place of 9.0, whose PTX remains for later GPUs."""
    replaced = {"9.0": ["9.0a"], "9.0+PTX": ["9.0a", "9.0+PTX"]}
    return list(dict.fromkeys(gpu for listed in gpus for gpu in replaced.get(listed, [listed])))


def gpu_flags(gpus: list[str]) -> list[str]:
    """What tells nvcc to make code for these GPUs, and the library (csrc/cuda/about.cu) for which it was made."""
    flags = [flag for gpu in gpus for flag in code_flags(gpu)]
    if "9.0a" in gpus:
        flags = [flag for flag in flags if not flag.endswith("code=sm_90")]  # the driver would have two to choose from
    return [*flags, f"-DQACG_GPUS={':'.join(gpus)}"]


def code_flags(gpu: str) -> list[str]:
    """What tells nvcc to make machine code for a GPU, and with +PTX what later ones can translate."""
    number = gpu.removesuffix("+PTX").replace(".", "")
    flags = [f"-gencode=arch=compute_{number},code=sm_{number}"]
    return [*flags, f"-gencode=arch=compute_{number},code=compute_{number}"] if gpu.endswith("+PTX") else flags


def why_no_cuda_library() -> str | None:
    """Why the CUDA library can't be built here, or None."""
    import torch

    path = nvcc()
    if path is None:
        home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
        looked = f"in {home}/bin, which CUDA_HOME names" if home else "on the path and in /usr/local/cuda/bin"
        return f"nvcc was not found at installation (looked {looked}); install the CUDA toolkit or set CUDA_HOME"
    version = nvcc_version(path)
    release = ".".join(map(str, version))
    if version < OLDEST_NVCC:
        return f"nvcc is of CUDA {release}, and {'.'.join(map(str, OLDEST_NVCC))} is the oldest that will do"
    if torch.version.cuda is None and asked("QACG_BUILD_CUDA") == "auto":
        return (
            f"torch {torch.__version__} was built without CUDA: install a CUDA build of torch, or build the library "
            "for another torch"
        )
    if torch.version.cuda is not None and int(torch.version.cuda.split(".")[0]) != version[0]:
        return (
            f"nvcc is of CUDA {release} and torch {torch.__version__} of CUDA {torch.version.cuda}: let CUDA_HOME name "
            f"a toolkit of CUDA {torch.version.cuda.split('.')[0]}, or install a torch for CUDA {version[0]}"
        )
    if not gpus(version):
        return "TORCH_CUDA_ARCH_LIST names no GPU of compute capability 8.0 or newer"
    return None


def _ninja_module() -> str | None:
    try:
        import ninja
    except ImportError:
        return None
    return str(Path(ninja.BIN_DIR) / "ninja")


def debugging() -> bool:
    return os.environ.get("DEBUG") == "1"


def _escaped(flags: list[str]) -> str:
    return " ".join(shlex.quote(f) for f in flags).replace("$", "$$")


def _rules(link: str) -> list[str]:
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


def _compile(rule: str, source: str, target: Path, flags: list[str]) -> list[str]:
    return [f"build {_path(target)}: {rule} {_path(ROOT / source)}", f"  flags = {_escaped(flags)}"]


def _link(library: Path, objects: list[Path]) -> list[str]:
    return [f"build {_path(library)}: link {' '.join(map(_path, objects))}", ""]


def cpu_sources(processor: str | None = None) -> tuple[dict[str, list[str]], list[str]]:
    """Sources for a processor, that which is built for if None, with their flags; and flags for attention.cpp that name
    what the compiler can't make."""
    processor, without = (processor or machine()).lower(), []
    others = [] if processor in ("x86_64", "amd64") else [*X86_ONLY]
    others += NOT_ARM if processor in ("aarch64", "arm64") else ARM_ONLY
    sources = {s: flags for s, flags in SOURCES.items() if not any(word in s for word in others)}
    for source, flag in OPTIONAL_SOURCES.items():
        if source in sources and not accepts(sources[source]):
            print(f"qacg_kernels: {compiler()} can't compile {source}: left out", file=sys.stderr)
            del sources[source]
            without.append(flag)
    return sources, without


def write_cpu_ninja(path: Path, library: Path) -> None:
    from torch.utils.cpp_extension import include_paths, library_paths

    sources, without = cpu_sources()
    optimise = ["-O0", "-g"] if debugging() else ["-O3", "-DNDEBUG"]
    torch_flags = [f"-isystem{p}" for p in include_paths()] + [STABLE_ABI, *without]
    if other := target():
        links = links_for(other, path.parent, library.name)
    else:
        links = [f"-L{p}" for p in library_paths()] + ["-ltorch_cpu"]
        links += mac_links(library.name) if sys.platform == "darwin" else []
    # No path of this machine is left in the library: errors name the file that they come from.
    here = [f"-ffile-prefix-map={p}=torch" for p in include_paths()] + [f"-ffile-prefix-map={ROOT}/="]
    lines, objects = _rules(f"$cxx -shared $in {_escaped(links)}"), []
    for source, flags in sources.items():
        objects.append(path.parent / (Path(source).stem + ".o"))
        # Kernel files see no torch header: see csrc/README.md.
        special = known_as(flags) if flags else [*torch_flags, *here]
        lines += _compile("compile", source, objects[-1], [*COMMON, *optimise, *special])
    path.write_text("\n".join([*lines, *_link(library, objects)]))


def mac_links(name: str) -> list[str]:
    """Torch's functions are looked up where the library is loaded; and it is not called by its path on this machine."""
    return ["-undefined", "dynamic_lookup", "-install_name", f"@rpath/{name}"]


def links_for(other: Target, folder: Path, name: str) -> list[str]:
    """How a library for another platform is linked: without a torch of that platform, and with a C++ runtime of its own
    of which it shows nothing. Zig compiles that runtime, optimised as the link is."""
    if not other.is_linux:
        return ["-O2", *mac_links(name), "-s"]
    exported = folder / "exported"
    exported.write_text("{ global: qacg_cpu_*; local: *; };\n")
    links = [f"-L{stand_in('torch_cpu', folder)}", "-Wl,--no-as-needed", "-ltorch_cpu", "-Wl,--as-needed"]
    return ["-O2", *links, f"-Wl,--version-script={exported}", "-s"]


def stand_in(name: str, folder: Path) -> Path:
    """A folder with an empty library of that name, for a library that will find the real one where it is loaded."""
    made = folder / "stand_in"
    made.mkdir(exist_ok=True)
    # Without -nostdlib Zig would first compile a C++ runtime for it.
    file = f"lib{name}.so"
    source = ["-x", "c", os.devnull, "-nostdlib", "-shared", f"-Wl,-soname,{file}", "-o", str(made / file)]
    subprocess.run([*shlex.split(compiler()), *source], check=True)
    return made


def write_cuda_ninja(path: Path, library: Path) -> None:
    from torch.utils.cpp_extension import include_paths, library_paths

    folder, cuda_compiler = path.parent, nvcc()
    libraries = [Path(p) for p in library_paths()]
    if not any((p / "libtorch_cuda.so").exists() for p in libraries):
        # A torch without CUDA: the library must still name the one that it will find in a torch with CUDA.
        libraries.append(stand_in("torch_cuda", folder))
    # The runtime is linked in, so that the one of torch may be of another minor version and import needs no driver.
    links = ["-cudart=static", *(f"-L{p}" for p in libraries), "-ltorch_cpu", "-Xlinker=--no-as-needed", "-ltorch_cuda"]
    links += ["-Xlinker=--exclude-libs=ALL"]
    kernel_flags = ["-std=c++17", "-O3", "-Xcompiler=-fPIC,-fvisibility=hidden", "-DNDEBUG"]
    if debugging():
        kernel_flags = ["-std=c++17", "-O0", "-g", "-lineinfo", "-Xcompiler=-fPIC,-fvisibility=hidden"]
    if os.environ.get("CXX"):
        kernel_flags += ["-ccbin", shlex.split(os.environ["CXX"])[-1]]
    targets = gpus(nvcc_version(cuda_compiler))
    # Beside the sources that ninja compiles at a time, the GPUs of one source, as far as there are cores for them.
    jobs = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)
    kernel_flags += [*gpu_flags(targets), f"--threads={max(1, min(len(targets), jobs // len(CUDA_SOURCES)))}"]
    optimise = ["-O0", "-g"] if debugging() else ["-O2", "-DNDEBUG"]
    host_flags = [*COMMON, *optimise, *(f"-isystem{p}" for p in include_paths()), CUDA_STABLE_ABI]
    lines = [
        *_rules(f"$nvcc -shared $in {_escaped(links)}"),
        f"nvcc = {cuda_compiler}",
        "rule compile_cuda",
        f"  command = $nvcc -MD -MF $out.d $flags -c $in -o $out {REFUSE_SERIALISED}",
        "  depfile = $out.d",
        "  deps = gcc",
    ]
    objects = [folder / (Path(source).stem + ".o") for source in (CUDA_HOST_SOURCE, *CUDA_SOURCES)]
    lines += _compile("compile", CUDA_HOST_SOURCE, objects[0], host_flags)
    for source, target in zip(CUDA_SOURCES, objects[1:]):
        lines += _compile("compile_cuda", source, target, kernel_flags)
    path.write_text("\n".join([*lines, *_link(library, objects)]))


def _path(p: Path) -> str:
    return str(p).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


class Library(NamedTuple):
    """A library of the package: what asks for it, if it must, why it can't be built, what writes its ninja file."""

    variable: str
    unasked: bool
    why_not: Callable[[], str | None]
    write_ninja: Callable[[Path, Path], None]


LIBRARIES = {
    "_cpu": Library("QACG_BUILD_CPU", True, lambda: None, write_cpu_ninja),
    "_cuda": Library("QACG_BUILD_CUDA", False, why_no_cuda_library, write_cuda_ninja),
}


def why_not_built(wanted: Library) -> str | None:
    """Why a library is not built, with what asks for it, or None if it is to be built."""
    if platform_tag() == "any" or (target() and wanted.variable != "QACG_BUILD_CPU"):
        return (
            f"the wheel has none; with torch, ninja and a compiler there, {wanted.variable}=1 pip install "
            "--no-build-isolation --no-binary qacg-kernels qacg-kernels builds it"
        )
    wish = asked(wanted.variable)
    if wish == "0":
        return f"{wanted.variable}=0 was set at installation"
    reason = why_no_library() or wanted.why_not()
    if wish == "1" or wanted.unasked:
        return reason
    reason = reason or "it takes minutes, and nothing asked for it"
    return f"{reason}; {wanted.variable}=1 pip install --no-build-isolation . builds it"


def note(name: str) -> str:
    """Where qacg_kernels/libraries.py looks for the reason why a library was not built."""
    return f"_build{name}.json"


class BuildWithNinja(build_ext):
    """build_ext that hands the work to ninja, and leaves a note when it can't."""

    def get_ext_filename(self, fullname):
        # No version of Python in the name: the libraries hold no symbol of Python, torch loads them.
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext):
        name = ext.name.rpartition(".")[2]
        wanted, path = LIBRARIES[name], Path(self.get_ext_fullpath(ext.name)).resolve()
        for stale in (path, path.parent / note(name)):
            stale.unlink(missing_ok=True)
        reason = why_not_built(wanted)
        if reason:
            if asked(wanted.variable) == "1":
                raise RuntimeError(f"{wanted.variable}=1, but {reason}")
            print(f"qacg_kernels: {path.name} is not built: {reason}", file=sys.stderr)
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / note(name)).write_text(json.dumps({"reason": reason}))
            return
        folder = Path(self.build_temp).resolve() / name
        folder.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        wanted.write_ninja(folder / "build.ninja", path)
        jobs = os.environ.get("MAX_JOBS")
        ninja = shutil.which("ninja") or _ninja_module()
        subprocess.run([ninja, "-C", str(folder), *(["-j", jobs] if jobs else [])], check=True)

    def get_outputs(self):
        # A skipped build leaves its note where the installer would look for the library.
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
    """A wheel for every version of Python, since torch loads the libraries; without a library one for any platform."""

    def run(self):
        self.run_command("build")
        self.skip_build = True
        if not any((Path(self.get_finalized_command("build").build_lib) / "qacg_kernels").glob("*.so")):
            self.root_is_pure = True
            self.distribution.ext_modules = []  # what has none is installed where packages of Python alone are
        super().run()

    def get_tag(self):
        if self.root_is_pure:
            return "py3", "none", "any"
        return "py3", "none", platform_tag() if target() else super().get_tag()[2]


if __name__ == "__main__":
    setup(
        ext_modules=[
            Extension("qacg_kernels._cpu", sources=list(SOURCES)),
            Extension("qacg_kernels._cuda", sources=[CUDA_HOST_SOURCE, *CUDA_SOURCES]),
        ],
        cmdclass={"build_ext": BuildWithNinja, "bdist_wheel": Wheel},
    )

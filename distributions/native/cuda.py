"""The CUDA library: the GPUs that it is built for, and the flags of nvcc."""

import os
import re
import shlex
import sys
from pathlib import Path

from native import compilers, environment, torch_headers

HOST_SOURCE = "csrc/cuda/attention.cpp"
KERNEL_SOURCES = (
    "csrc/cuda/library_info.cu",
    "csrc/cuda/kernels_gate.cu",
    "csrc/cuda/kernels_float16.cu",
    "csrc/cuda/kernels_bfloat16.cu",
)
OLDEST_NVCC = (12, 0)
# The oldest whose smallest compression (an eighth of the default's size) every driver for its programs can read.
SMALLEST_NVCC = (13, 0)
OLDEST_GPU = (8, 0)  # the oldest with the instructions in csrc/cuda/mma.h
# Default GPUs, and the oldest nvcc that supports each. The PTX of PORTABLE, or else of the last one, serves all other
# GPUs that are newer than it, such as 11.0.
DEFAULT_GPUS = {"8.0": (11, 0), "9.0": (11, 8), "10.0": (12, 8), "12.0": (12, 8)}
PORTABLE = "10.0"


def gpus(version: tuple[int, int]) -> list[str]:
    """The GPUs to build for, such as "9.0" or "10.0+PTX", without those that the kernels do not support."""
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if not listed:
        supported = [gpu for gpu, first in DEFAULT_GPUS.items() if version >= first]
        portable = PORTABLE if PORTABLE in supported else supported[-1]
        return [gpu + "+PTX" if gpu == portable else gpu for gpu in supported]
    chosen = []
    for gpu in re.split(r"[\s;,]+", listed.strip()):
        number = re.fullmatch(r"(\d+)\.(\d+)[af]?(\+PTX)?", gpu)
        if number is None:
            raise RuntimeError(f"TORCH_CUDA_ARCH_LIST: expected numbers such as '8.0 9.0 10.0+PTX', got {gpu!r}")
        if (int(number[1]), int(number[2])) >= OLDEST_GPU:
            chosen.append(gpu)
        else:
            print(
                f"qacg_kernels: {gpu} is omitted, because the CUDA kernels require compute capability 8.0 or newer",
                file=sys.stderr,
            )
    return list(dict.fromkeys(chosen))


def gpu_flags(gpus: list[str]) -> list[str]:
    """The flags of nvcc for these GPUs, and the macro with their list, which csrc/cuda/library_info.cu returns."""
    flags: dict[str, None] = {}
    for gpu in gpus:
        number = gpu.removesuffix("+PTX").replace(".", "")
        for code in ("sm", "compute") if gpu.endswith("+PTX") else ("sm",):  # compute: drivers translate it
            flags[f"-gencode=arch=compute_{number},code={code}_{number}"] = None
    return [*flags, f"-DQACG_GPUS={':'.join(gpus)}"]


def why_not() -> str | None:
    """The reason why the CUDA library cannot be built on this machine; None if it can."""
    path = compilers.nvcc()
    if path is None:
        home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
        looked = f"in {home}/bin" if home else "on the path, in /usr/local/cuda/bin and among pip's packages"
        return f"nvcc was not found at installation (looked {looked}); install the CUDA toolkit or set CUDA_HOME"
    version = compilers.nvcc_version(path)
    if version < OLDEST_NVCC:
        return f"nvcc: expected CUDA {'.'.join(map(str, OLDEST_NVCC))} or newer, got {'.'.join(map(str, version))}"
    if not gpus(version):
        return "TORCH_CUDA_ARCH_LIST: expected a GPU of compute capability 8.0 or newer, got none"
    return None


def write_ninja(path: Path, library: Path) -> None:
    """Writes the ninja file that builds the library."""
    folder, headers = path.parent, torch_headers.include_folder()
    cuda_compiler = compilers.nvcc()
    optimise = ["-O0", "-g"] if environment.debugging() else ["-O2", "-DNDEBUG"]
    host_flags = [*compilers.COMMON, *optimise, *compilers.without_machine_paths(headers)]
    host_flags += [f"-isystem{headers}", torch_headers.CUDA_FLAG]
    lines = [
        *compilers.rules(link_command(Path(cuda_compiler), folder)),
        f"nvcc = {cuda_compiler}",
        "rule compile_cuda",
        "  command = $nvcc -MD -MF $out.d $flags -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
    ]
    objects = [folder / (Path(source).stem + ".o") for source in (HOST_SOURCE, *KERNEL_SOURCES)]
    lines += compilers.compile_edge("compile", HOST_SOURCE, objects[0], host_flags)
    flags = kernel_flags(cuda_compiler)
    for source, target in zip(KERNEL_SOURCES, objects[1:]):
        lines += compilers.compile_edge("compile_cuda", source, target, flags)
    path.write_text("\n".join([*lines, *compilers.link_edge(library, objects)]))


def kernel_flags(cuda_compiler: str) -> list[str]:
    """The flags of nvcc for the kernels."""
    version = compilers.nvcc_version(cuda_compiler)
    flags = ["-std=c++17", "-O3", "-Xcompiler=-fPIC,-fvisibility=hidden", "-DNDEBUG"]
    if environment.debugging():
        flags = ["-std=c++17", "-O0", "-g", "-lineinfo", "-Xcompiler=-fPIC,-fvisibility=hidden"]
    if version >= SMALLEST_NVCC:
        flags.append("--compress-mode=size")
    if os.environ.get("CXX"):
        flags += ["-ccbin", shlex.split(os.environ["CXX"])[-1]]
    targets = gpus(version)
    # If there are more cores than sources, nvcc compiles one source for several GPUs in parallel.
    jobs = environment.jobs() or os.cpu_count() or 1
    return [*flags, *gpu_flags(targets), f"--threads={max(1, min(len(targets), jobs // len(KERNEL_SOURCES)))}"]


def link_command(cuda_compiler: Path, folder: Path) -> str:
    """The command that links the library, without its output; writes the files that it refers to into `folder`.

    The CUDA runtime is linked statically for two reasons: torch may have another version of it, and importing a library
    with a static runtime requires no driver. Of torch's libraries only the names are recorded, even if this torch has
    no CUDA.
    """
    home = cuda_compiler.resolve().parents[1]
    # The second folder is that of pip's packages, in which their nvcc does not look.
    runtimes = [f"-L{home / name}" for name in ("lib64", "lib") if (home / name / "libcudart_static.a").exists()]
    links = [*compilers.stand_ins(("torch_cpu", "torch_cuda"), folder), *runtimes[:1]]
    if environment.target() is None:
        links = ["-cudart=static", "-Xlinker=--no-as-needed", *links, "-Xlinker=--exclude-libs=ALL"]
        return f"$nvcc -shared $in {compilers.escaped(links)}"
    links = ["-O2", "-Wl,--no-as-needed", *links, "-Wl,--as-needed", "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
    links += compilers.hide_symbols("qacg_cuda_*", folder)
    return f"$cxx -shared $in {compilers.escaped(links)}"

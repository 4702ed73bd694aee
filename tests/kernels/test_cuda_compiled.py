"""Machine code of the CUDA kernels, without a GPU: spills and alignment."""

import concurrent.futures
import ctypes
import os
import re
import struct
import subprocess
from pathlib import Path

import pytest
from native import compilers, cuda

ROOT = Path(__file__).resolve().parents[2]
GPUS = ("8.0", "9.0", "10.0", "12.0")
# The number of kernels of each source.
KERNELS = {
    "library_info": 0,
    "kernels_gate": 3,
    "kernels_float16": 11,
    "kernels_bfloat16": 11,
}
SHARED_ALIGNMENT = 256  # of tiles; the emulator's memory always has it

pytestmark = pytest.mark.skipif(compilers.nvcc() is None, reason="nvcc, the CUDA compiler, is not on this machine")


def compiled(source: str, gpu: str, folder: Path) -> dict[str, tuple[str, ...]]:
    """Compiles one source for one GPU; returns bytes of stack, spill stores and spill loads by mangled name."""
    target = folder / f"{Path(source).stem}.{gpu}.cubin"
    command = [compilers.nvcc(), "-std=c++17", "-O3", "-DNDEBUG", "-cubin", f"-arch=sm_{gpu.replace('.', '')}"]
    command += ["-Xptxas=-v,-warn-spills", str(ROOT / source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {}
    for part in done.stderr.split("Compiling entry function '")[1:]:
        numbers = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        found[part.partition("'")[0]] = numbers.groups()
    return found


def shared_alignments(cubin: bytes) -> dict[str, int]:
    """Alignment of each kernel's shared memory in bytes by mangled name, from the sections of an ELF file."""
    (offset,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, offset + n * size) for n in range(count)]
    found = {}
    for name_at, *_, alignment, _ in sections:
        start = sections[names][4] + name_at
        name = cubin[start : cubin.index(b"\0", start)].decode()
        if mangled := re.fullmatch(r"\.nv\.shared\.(_ZN.*)", name):
            found[mangled[1]] = alignment
    return found


@pytest.mark.full
def test_kernels_compile_without_spills(tmp_path):
    pairs = [(source, gpu) for source in cuda.KERNEL_SOURCES for gpu in GPUS if supports(gpu)]
    assert pairs
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(lambda pair: compiled(*pair, tmp_path), pairs))
    spilled, misaligned = [], []
    for (source, gpu), kernels in zip(pairs, results):
        cubin = (tmp_path / f"{Path(source).stem}.{gpu}.cubin").read_bytes()
        misaligned += [item for item in shared_alignments(cubin).items() if item[1] < SHARED_ALIGNMENT]
        assert len(kernels) == KERNELS[Path(source).stem], sorted(kernels)
        spilled += [(gpu, name, used) for name, used in kernels.items() if used != ("0", "0", "0")]
    assert not spilled
    assert not misaligned


def supports(gpu: str) -> bool:
    return compilers.nvcc_version(compilers.nvcc()) >= cuda.DEFAULT_GPUS[gpu]


@pytest.mark.full
def test_library_reports_its_gpus(tmp_path):
    """The list passes through the preprocessors of nvcc and of its host compiler."""
    if compilers.compiler() is None:
        pytest.skip("no C++ compiler for nvcc to work with")
    built, gpus = tmp_path / "library_info.so", ["8.0", "9.0+PTX"]
    command = [compilers.nvcc(), "-std=c++17", "-O0", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden"]
    command += [*cuda.gpu_flags(gpus), str(ROOT / "csrc/cuda/library_info.cu"), "-o", str(built)]
    subprocess.run(command, check=True)
    info = ctypes.CDLL(str(built))
    info.qacg_cuda_gpus.restype = ctypes.c_char_p
    assert info.qacg_cuda_gpus().decode().split(":") == gpus

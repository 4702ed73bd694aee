"""Machine code of the CUDA kernels, without a GPU: spills, blocks per multiprocessor, alignment."""

import concurrent.futures
import ctypes
import os
import re
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from native import compilers, cuda

ROOT = Path(__file__).resolve().parents[2]
GPUS = ("8.0", "9.0", "10.0", "12.0")
REGISTERS_PER_MULTIPROCESSOR = 65536
# The number of kernels of each source.
KERNELS = {
    "library_info": 0,
    "kernels_gate": 3,
    "kernels_float16": 11,
    "kernels_bfloat16": 11,
}
KIB = 1024
SYSTEM_SHARED = KIB  # reserved per block
SHARED_ALIGNMENT = 256  # of tiles; the emulator's memory always has it


class Limits(NamedTuple):
    """The compute capability of a GPU's code, and limits of its multiprocessors.

    shared, block: bytes of shared memory in total and per block. threads: resident threads.
    """

    code: str
    shared: int
    block: int
    threads: int


# CUDA C++ Programming Guide, technical specifications per compute capability. 8.6 and 8.9 run the code of 8.0.
LIMITS = {
    "8.0": Limits("8.0", 164 * KIB, 163 * KIB, 2048),
    "8.6": Limits("8.0", 100 * KIB, 99 * KIB, 1536),
    "8.9": Limits("8.0", 100 * KIB, 99 * KIB, 1536),
    "9.0": Limits("9.0", 228 * KIB, 227 * KIB, 2048),
    "10.0": Limits("10.0", 228 * KIB, 227 * KIB, 2048),
    "12.0": Limits("12.0", 100 * KIB, 99 * KIB, 1536),
}
# Blocks of a kernel that fit a multiprocessor: on 8.0; on 8.6, 8.9 and 12.0; on 9.0 and 10.0.
RESIDENT = {
    "forward_short<32>": (3, 2, 3),
    "forward_short<64>": (2, 1, 3),
    "forward<32>": (2, 2, 2),
    "forward<64>": (2, 1, 2),
    "forward<128>": (2, 1, 2),
    "backward_rows<32>": (2, 2, 2),
    "backward_rows<64>": (2, 2, 2),
    "backward_rows<128>": (2, 1, 2),
    "backward_keys<32>": (1, 1, 1),
    "backward_keys<64>": (1, 1, 1),
    "backward_keys<128>": (1, 1, 1),
}
COLUMN_OF_RESIDENT = {"8.0": 0, "8.6": 1, "8.9": 1, "9.0": 2, "10.0": 2, "12.0": 1}
# Prints name, threads of a block and bytes of its dynamic shared memory for each kernel of the forward and backward.
SHAPES = """
#include <stdio.h>
#include "mma_launch.h"
using namespace qacg::cuda::mma;
using Scalar = qacg::Bfloat16;
template <typename Shape>
void print(const char* kernel, int dim) {
  printf("%s<%d> %d %lld\\n", kernel, dim, Shape::kThreads, static_cast<long long>(Shape::kShared));
}
template <int kDim>
void print_all() {
  if constexpr (kDim <= kMostShortDims) print<ShortShape<Scalar, kDim>>("forward_short", kDim);
  print<ForwardShape<Scalar, kDim>>("forward", kDim);
  print<RowsShape<Scalar, kDim>>("backward_rows", kDim);
  print<KeysShape<kDim>>("backward_keys", kDim);
}
int main() {
  print_all<32>();
  print_all<64>();
  print_all<128>();
}
"""

pytestmark = pytest.mark.skipif(compilers.nvcc() is None, reason="nvcc, the CUDA compiler, is not on this machine")


class Resources(NamedTuple):
    """Resources of a kernel: registers, stack, spill stores and loads of a thread, static shared memory of a block.

    All but the registers are in bytes.
    """

    registers: int
    stack: int
    stores: int
    loads: int
    shared: int


class Shape(NamedTuple):
    """Threads of a block and its dynamic shared memory in bytes."""

    threads: int
    shared: int


@pytest.fixture(scope="module")
def shapes(tmp_path_factory) -> dict[str, Shape]:
    """Shapes of the kernels of the forward and backward by short name."""
    folder = tmp_path_factory.mktemp("shapes")
    source, program = folder / "shapes.cu", folder / "shapes"
    source.write_text(SHAPES)
    command = [compilers.nvcc(), "-std=c++17", f"-I{ROOT / 'csrc/cuda'}", str(source), "-o", str(program)]
    subprocess.run(command, capture_output=True, text=True, check=True)
    lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: Shape(int(threads), int(shared)) for name, threads, shared in map(str.split, lines)}


def fitting(limits: Limits, shape: Shape, registers: int, static_shared: int = 0) -> int:
    """The number of blocks that fit a multiprocessor."""
    shared = shape.shared + static_shared
    if shared > limits.block:
        return 0
    return min(
        limits.shared // (shared + SYSTEM_SHARED),
        REGISTERS_PER_MULTIPROCESSOR // ((registers + 7) // 8 * 8 * shape.threads),
        limits.threads // shape.threads,
    )


def compiled(source: str, gpu: str, folder: Path) -> dict[str, Resources]:
    """Compiles one source for one GPU; returns each kernel's resources by short name."""
    target = folder / f"{Path(source).stem}.{gpu}.cubin"
    command = [compilers.nvcc(), "-std=c++17", "-O3", "-DNDEBUG", "-cubin", f"-arch=sm_{gpu.replace('.', '')}"]
    command += ["-Xptxas=-v,-warn-spills", str(ROOT / source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {}
    for part in done.stderr.split("Compiling entry function '")[1:]:
        stack, stores, loads = re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part
        ).groups()
        registers = re.search(r"Used (\d+) registers", part)[1]
        shared = re.search(r"(\d+) bytes smem", part)
        numbers = (registers, stack, stores, loads, shared[1] if shared else 0)
        found[short_name(part.partition("'")[0])] = Resources(*map(int, numbers))
    return found


def shared_alignments(cubin: bytes) -> dict[str, int]:
    """Alignment of each kernel's shared memory in bytes by short name, from the sections of an ELF file."""
    (offset,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, offset + n * size) for n in range(count)]
    found = {}
    for name_at, *_, alignment, _ in sections:
        start = sections[names][4] + name_at
        name = cubin[start : cubin.index(b"\0", start)].decode()
        if mangled := re.fullmatch(r"\.nv\.shared\.(_ZN.*)", name):
            found[short_name(mangled[1])] = alignment
    return found


def short_name(mangled: str) -> str:
    """Returns the name and head size, such as "forward<64>" for qacg::cuda::mma::forward<qacg::Bfloat16, 64>."""
    # The last of the lengths and names that follow _ZN, and the number among the template's arguments.
    rest, name = re.match(r"_ZN(.*)", mangled)[1], ""
    while number := re.match(r"\d+", rest):
        end = number.end() + int(number[0])
        name, rest = rest[number.end() : end], rest[end:]
    dim = re.match(r"I.*?Li(\d+)E", rest)
    return f"{name}<{dim[1]}>" if dim else name


@pytest.mark.full
def test_resident_blocks_fit_shared_memory(shapes):
    """The numbers of blocks in RESIDENT must fit the shared memory. Nothing is compiled."""
    assert shapes.keys() == RESIDENT.keys()
    for gpu, column in COLUMN_OF_RESIDENT.items():
        for name, shape in shapes.items():
            assert fitting(LIMITS[gpu], shape, 1) >= RESIDENT[name][column], f"{name} on {gpu}: {shape}"


@pytest.mark.full
def test_kernels_compile_without_spills(shapes, tmp_path):
    pairs = [(source, gpu) for source in cuda.KERNEL_SOURCES for gpu in GPUS if supports(gpu)]
    assert pairs
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(lambda pair: compiled(*pair, tmp_path), pairs))
    spilled, crowded, misaligned = [], [], []
    for (source, gpu), kernels in zip(pairs, results):
        cubin = (tmp_path / f"{Path(source).stem}.{gpu}.cubin").read_bytes()
        misaligned += [item for item in shared_alignments(cubin).items() if item[1] < SHARED_ALIGNMENT]
        assert len(kernels) == KERNELS[Path(source).stem], sorted(kernels)
        for name, used in kernels.items():
            print(f"{Path(source).name} sm_{gpu.replace('.', '')} {name}: {used}")
            if used.stack or used.stores or used.loads:
                spilled.append((source, gpu, name, used))
            for capability, limits in LIMITS.items():
                if limits.code != gpu:
                    continue
                # Blocks of the gate's kernels: 256 threads and 1 KiB.
                shape, expected = Shape(256, KIB), 1
                if name in shapes:
                    shape, expected = shapes[name], RESIDENT[name][COLUMN_OF_RESIDENT[capability]]
                fit = fitting(limits, shape, used.registers, used.shared)
                print(f"  {fit} blocks per multiprocessor of {capability}, expected {expected}")
                if fit < expected:
                    crowded.append((source, capability, name, used, shape, fit, expected))
    assert not spilled
    assert not crowded
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

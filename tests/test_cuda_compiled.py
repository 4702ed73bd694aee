"""Machine code of the CUDA kernels for GPUs that are not here: it compiles, and nothing is spilled.

Shared memory is held to its limits by static assertions in csrc/cuda/mma_launch.h.
"""

import concurrent.futures
import ctypes
import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
GPUS = ("8.0", "9.0a", "10.0")
REGISTERS_PER_MULTIPROCESSOR = 65536
KERNELS = {"about": 0, "kernels_plain": 6, "kernels_mma_float16": 12, "kernels_mma_bfloat16": 12}  # in a source
# Blocks of a kernel that are to fit a multiprocessor's registers at a time, other kernels one: threads, blocks.
RESIDENT = {
    "forward_short<32>": (128, 3),
    "forward_short<64>": (128, 3),
    "forward_short<128>": (128, 2),
    "forward<32>": (128, 2),
    "forward<64>": (128, 2),
    "forward<128>": (128, 2),
    "backward_rows<32>": (128, 2),
    "backward_rows<64>": (128, 2),
    "backward_rows<128>": (128, 2),
}


def read_setup():
    spec = importlib.util.spec_from_file_location("qacg_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SETUP = read_setup()
pytestmark = pytest.mark.skipif(SETUP.nvcc() is None, reason="nvcc, the CUDA compiler, is not on this machine")


class Resources(NamedTuple):
    """Of one kernel: registers of a thread, bytes of its stack, bytes of spilled registers stored and loaded."""

    registers: int
    stack: int
    stores: int
    loads: int


def compiled(source: str, gpu: str, folder: Path) -> dict[str, Resources]:
    """Compiles one source for one GPU; what the assembler says about each kernel, by short name."""
    target = folder / f"{Path(source).stem}.{gpu}.cubin"
    command = [SETUP.nvcc(), "-std=c++17", "-O3", "-DNDEBUG", "-cubin", f"-arch=sm_{gpu.replace('.', '')}"]
    command += ["-Xptxas=-v,-warn-spills", str(ROOT / source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {}
    for part in done.stderr.split("Compiling entry function '")[1:]:
        stack, stores, loads = re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part
        ).groups()
        registers = re.search(r"Used (\d+) registers", part)[1]
        found[short_name(part.partition("'")[0])] = Resources(*map(int, (registers, stack, stores, loads)))
    return found


def short_name(mangled: str) -> str:
    """Such as "forward<64>" for the mangled name of qacg::cuda::mma::forward<qacg::Bfloat16, 64>."""
    # The last of the lengths and names that follow _ZN, and the number among the template's arguments.
    rest, name = re.match(r"_ZN(.*)", mangled)[1], ""
    while number := re.match(r"\d+", rest):
        end = number.end() + int(number[0])
        name, rest = rest[number.end() : end], rest[end:]
    dim = re.match(r"I.*?Li(\d+)E", rest)
    return f"{name}<{dim[1]}>" if dim else name


def test_names_are_read_from_mangled_ones():
    problem = "EEvNS0_7ProblemE"
    assert short_name(f"_ZN4qacg4cuda3mma13forward_shortINS_8Bfloat16ELi64{problem}") == "forward_short<64>"
    assert short_name("_ZN4qacg4cuda5plain7forwardENS0_7ProblemE") == "forward"


def test_kernels_compile_and_spill_nothing(tmp_path):
    pairs = [(source, gpu) for source in SETUP.CUDA_SOURCES for gpu in GPUS if gpu != "10.0" or knows_sm_100()]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(lambda pair: compiled(*pair, tmp_path), pairs))
    spilled, crowded = [], []
    for (source, gpu), kernels in zip(pairs, results):
        assert len(kernels) == KERNELS[Path(source).stem], sorted(kernels)
        for name, used in kernels.items():
            print(f"{Path(source).name} sm_{gpu.replace('.', '')} {name}: {used}")
            if used.stack or used.stores or used.loads:
                spilled.append((source, gpu, name, used))
            threads, blocks = RESIDENT.get(name, (256, 1)) if "mma" in source else (256, 1)
            if (used.registers + 7) // 8 * 8 * threads * blocks > REGISTERS_PER_MULTIPROCESSOR:
                crowded.append((source, gpu, name, used))
    assert not spilled
    assert not crowded


def knows_sm_100() -> bool:
    return SETUP.nvcc_version(SETUP.nvcc()) >= SETUP.DEFAULT_GPUS["10.0"]


def test_the_library_names_the_gpus_that_its_code_is_for(tmp_path):
    """The words go through nvcc's own preprocessing and its host compiler's."""
    if SETUP.compiler() is None:
        pytest.skip("no C++ compiler for nvcc to work with")
    built, gpus = tmp_path / "about.so", ["8.0", "9.0a", "9.0+PTX"]
    command = [SETUP.nvcc(), "-std=c++17", "-O0", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden"]
    command += [*SETUP.gpu_flags(gpus), str(ROOT / "csrc/cuda/about.cu"), "-o", str(built)]
    subprocess.run(command, check=True)
    about = ctypes.CDLL(str(built))
    about.qacg_cuda_gpus.restype = ctypes.c_char_p
    assert about.qacg_cuda_gpus().decode().split(":") == gpus
    about.qacg_cuda_shared_memory.restype = ctypes.c_int64
    # As csrc/cuda/README.md has them, in whole KiB.
    assert [-(-about.qacg_cuda_shared_memory(d, 1) // 1024) for d in (64, 72, 128)] == [101, 111, 111]
    assert [-(-about.qacg_cuda_shared_memory(d, 0) // 1024) for d in (128,)] == [83]

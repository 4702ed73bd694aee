"""Builds the compiled libraries with ninja: the CPU's, one translation unit per instruction set, and the CUDA one.

What is built of what, with which flags, is in distributions/native.

Environment:
    QACG_BUILD_CPU        auto (default: build if ninja and a C++ compiler are there), 1 (fail if not), 0 (never)
    QACG_BUILD_CUDA       1 (build it, with nvcc, or fail; a torch without CUDA will do, the library is then for another
                          one), auto (default: do not, and say what asks for it), 0 (never)
    CUDA_HOME             the CUDA toolkit, else that of the nvcc on the path, else /usr/local/cuda
    TORCH_CUDA_ARCH_LIST  GPUs to build for, such as "8.0 9.0 10.0+PTX"; else those three as far as nvcc knows them
    CXX                   the compiler, else c++, g++ or clang++
    MAX_JOBS              compile jobs at a time
    DEBUG                 1 for -O0 -g, and line numbers in GPU code
    QACG_BUILD_FOR        a wheel for a platform of native/platforms.py, by the compiler in the package ziglang
No GPU is looked for: a machine without one can build for those that have.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup

sys.path.insert(0, str(Path(__file__).resolve().parent / "distributions"))

from native import commands, cpu, cuda

setup(
    ext_modules=[
        Extension("qacg_kernels._cpu", sources=list(cpu.SOURCES)),
        Extension("qacg_kernels._cuda", sources=[cuda.HOST_SOURCE, *cuda.KERNEL_SOURCES]),
    ],
    cmdclass={"build_ext": commands.BuildWithNinja, "bdist_wheel": commands.Wheel},
)

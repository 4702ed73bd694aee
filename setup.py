"""Builds the compiled libraries of qacg-kernels with ninja; distributions/native has their sources and flags.

Environment:
    QACG_BUILD_CPU        auto (default: build if ninja and a C++ compiler are found; fail without a supported torch),
                          1 (build or fail), 0 (never)
    QACG_BUILD_CUDA       auto (default: do not build, and print the command that does), 1 (build with nvcc or fail;
                          also with a torch without CUDA, for use with another torch), 0 (never)
    CUDA_HOME             folder of the CUDA toolkit (also CUDA_PATH); by default that of the nvcc on the path, else
                          /usr/local/cuda, else a toolkit that pip installed
    TORCH_CUDA_ARCH_LIST  GPUs to build for, from 8.0; by default those of "8.0 9.0 10.0+PTX 12.0" that nvcc supports,
                          with +PTX at the newest if nvcc does not support 10.0
    CXX                   the C++ compiler; by default c++, g++ or clang++
    MAX_JOBS              number of compile jobs at a time
    DEBUG                 1 for -O0 -g, and line numbers in GPU code
    QACG_BUILD_FOR        platform tag of the wheel (distributions/native/environment.py), for which the package ziglang
                          compiles the CPU library only; any for a wheel without libraries
The build does not look for a GPU, so a machine without one can build for others.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup

sys.path.insert(0, str(Path(__file__).resolve().parent / "distributions"))

from native import commands, cpu, cuda, environment

# Triton's GPUs are on Linux only.
launcher = [Extension("qacg_kernels._launch", sources=[cpu.LAUNCH_SOURCE])] if environment.for_linux() else []

setup(
    ext_modules=[
        Extension("qacg_kernels._cpu", sources=list(cpu.SOURCES)),
        *launcher,
        Extension("qacg_kernels._cuda", sources=[cuda.HOST_SOURCE, *cuda.KERNEL_SOURCES]),
    ],
    cmdclass={"build_ext": commands.BuildWithNinja, "bdist_wheel": commands.Wheel},
)

"""csrc/cuda/shared_memory.h with a stub of the CUDA runtime that counts its calls."""

import subprocess
from pathlib import Path

import pytest
from cuda_emulator import build

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = """
#pragma once
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
inline int device = 0, times_set = 0;
inline cudaError_t last = cudaSuccess;
inline cudaError_t record(cudaError_t error) { return error == cudaSuccess ? error : last = error; }
inline cudaError_t cudaGetLastError() { const cudaError_t error = last; last = cudaSuccess; return error; }
inline const char* cudaGetErrorString(cudaError_t) { return "invalid value"; }
inline cudaError_t cudaGetDevice(int* d) { *d = device; return cudaSuccess; }
inline cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int bytes) {
  ++times_set;
  return record(bytes <= 100 * 1024 ? cudaSuccess : cudaErrorInvalidValue);
}
"""
PROGRAM = """
#include <stdio.h>
#include <string.h>
#include "shared_memory.h"
#define CHECK(condition) if (!(condition)) { printf("line %d: " #condition "\\n", __LINE__); return 1; }
void kernel() {}
void other() {}
int main() {
  using namespace qacg::cuda;
  constexpr auto allow = allow_shared_memory<kernel, 80 * 1024>;
  CHECK(!(allow_shared_memory<kernel, 48 * 1024>()) && times_set == 0);
  for (int n = 0; n < 3; ++n) CHECK(!allow() && times_set == 1);
  CHECK(!(allow_shared_memory<other, 80 * 1024>()) && times_set == 2);
  device = 63;
  for (int n = 0; n < 3; ++n) CHECK(!allow() && times_set == 3);
  device = 64;  // further devices are not remembered
  for (int n = 0; n < 3; ++n) CHECK(!allow() && times_set == 4 + n);
  for (int n = 0; n < 2; ++n) {  // fails every time, and leaves no error for the next launch
    const char* error = allow_shared_memory<other, 101 * 1024>();
    CHECK(error && !strcmp(error, "invalid value") && times_set == 7 + n && last == cudaSuccess);
  }
  device = 0;
  CHECK(!allow() && times_set == 8);
  return 0;
}
"""


@pytest.mark.full
def test_shared_memory_is_requested_once_per_kernel_and_device(tmp_path):
    if build.compiler() is None:
        pytest.skip("no C++ compiler")
    (tmp_path / "cuda_runtime.h").write_text(RUNTIME)
    (tmp_path / "program.cpp").write_text(PROGRAM)
    program = tmp_path / "program"
    command = [build.compiler(), "-std=c++17", "-Wall", f"-I{tmp_path}", f"-I{ROOT / 'csrc/cuda'}"]
    subprocess.run([*command, str(tmp_path / "program.cpp"), "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout

// More than 48 KiB of shared memory per block must be requested for each kernel and device.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include <atomic>

namespace qacg::cuda {

// The error as text, or null. Clears the error, because the runtime would report it again at the next launch.
inline const char* error_text(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();
  return cudaGetErrorString(error);
}

// Requests kBytes of shared memory for the kernel's blocks on the current device, unless an earlier call has.
template <auto kernel, int64_t kBytes>
const char* allow_shared_memory() {
  if (kBytes <= 48 * 1024) return nullptr;
  static std::atomic<uint64_t> allowed{0};  // a bit for each of the first 64 devices
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error_text(error);
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if (allowed & bit) return nullptr;
  error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(kBytes));
  if (error != cudaSuccess) return error_text(error);
  allowed |= bit;
  return nullptr;
}

}  // namespace qacg::cuda

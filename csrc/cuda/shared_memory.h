// How much shared memory a block may have on the current device. More than 48 KiB has to be asked for.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

namespace qacg::cuda {

// What went wrong, in words, or null. The runtime forgets the error: it would tell it again at the next launch.
inline const char* error_text(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();
  return cudaGetErrorString(error);
}

// Shared memory that a block of the current device may ask for; the driver is asked once for each device.
inline const char* shared_memory_limit(int64_t* bytes) {
  constexpr int kDevices = 64;  // of a machine; any beyond are asked for every time
  static std::atomic<int> known[kDevices];
  *bytes = 0;
  int device = 0, limit = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error_text(error);
  const bool kept = device < kDevices;
  if (kept) limit = known[device].load(std::memory_order_relaxed);
  if (limit == 0) {
    error = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) return error_text(error);
    if (kept) known[device].store(limit, std::memory_order_relaxed);
  }
  *bytes = limit;
  return nullptr;
}

// Allows blocks of a kernel so much shared memory; the runtime is told once for each kernel and device.
inline const char* allow_shared_memory(const void* kernel, int64_t bytes) {
  constexpr int64_t kAllowedAnyway = 48 * 1024;
  if (bytes <= kAllowedAnyway) return nullptr;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error_text(error);
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int64_t> allowed;
  const std::lock_guard<std::mutex> lock(mutex);
  int64_t& most = allowed[{kernel, device}];
  if (bytes <= most) return nullptr;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) most = bytes;
  return error_text(error);
}

}  // namespace qacg::cuda

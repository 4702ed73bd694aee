// Shared memory per block on the current device. More than 48 KiB must be requested for each kernel.
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

// Gets the most shared memory per block on the current device. Queries the driver once for each device.
inline const char* shared_memory_limit(int64_t* bytes) {
  constexpr int kDevices = 64;  // the limits of further devices are not cached
  static std::atomic<int> limits[kDevices];
  *bytes = 0;
  int device = 0, limit = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error_text(error);
  const bool cached = device < kDevices;
  if (cached) limit = limits[device].load(std::memory_order_relaxed);
  if (limit == 0) {
    error = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) return error_text(error);
    if (cached) limits[device].store(limit, std::memory_order_relaxed);
  }
  *bytes = limit;
  return nullptr;
}

// Requests this much shared memory for a kernel's blocks, once for each kernel and device. Threads that launch a kernel
// at the same time have to request the same amount.
inline const char* allow_shared_memory(const void* kernel, int64_t bytes) {
  constexpr int64_t kAllowedAnyway = 48 * 1024;
  if (bytes <= kAllowedAnyway) return nullptr;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error_text(error);
  // A list that only grows, because std::map and std::mutex would require libstdc++, which our wheels must not require.
  struct Allowed {
    const void* kernel;
    int device;
    int64_t bytes;
    Allowed* next;
  };
  static std::atomic<Allowed*> first{nullptr};
  for (const Allowed* item = first.load(std::memory_order_acquire); item; item = item->next) {
    if (item->kernel == kernel && item->device == device && item->bytes >= bytes) return nullptr;
  }
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error_text(error);
  auto* item = new Allowed{kernel, device, bytes, first.load(std::memory_order_relaxed)};
  while (!first.compare_exchange_weak(item->next, item, std::memory_order_release, std::memory_order_relaxed)) {
  }
  return nullptr;
}

}  // namespace qacg::cuda

// The CUDA features that the kernels use: threads, barriers, shared memory, launches. Apart from mma.h, kernels
// use no others, so that tests can run their source on a CPU: tests/cuda_emulator defines the same names.
#pragma once

#include <stdint.h>

#if defined(QACG_EMULATED)
#include "cuda_intrinsics_emulator.h"
#else

#include <cuda_runtime.h>

#include "shared_memory.h"

#define QACG_DEVICE __device__ __forceinline__
#define QACG_KERNEL(threads, blocks_per_multiprocessor) \
  __global__ void __launch_bounds__(threads, blocks_per_multiprocessor)
// Kernel parameters stay in constant memory.
#define QACG_PARAMETER __grid_constant__ const

namespace qacg::cuda {

constexpr int kWarp = 32;
constexpr int kCompiledVersion = CUDART_VERSION;

inline int driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

QACG_DEVICE int thread_index() { return threadIdx.x; }
QACG_DEVICE int64_t block_index() { return blockIdx.x; }
QACG_DEVICE void synchronise_block() { __syncthreads(); }
QACG_DEVICE void synchronise_warp() { __syncwarp(); }
QACG_DEVICE float shuffle_xor(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
QACG_DEVICE bool all_of_warp(bool x) { return __all_sync(0xffffffffu, x); }

// Returns x, but the optimiser treats the result as unknown. So values derived from the result are computed where they
// are used; addresses that are hoisted out of a loop would exceed the registers.
template <typename Word>
QACG_DEVICE Word opaque(Word x) {
  static_assert(sizeof(Word) == 4);
  asm volatile("" : "+r"(x));
  return x;
}

QACG_DEVICE float opaque(float x) {
  asm volatile("" : "+f"(x));
  return x;
}

// The block's dynamic shared memory, aligned as the tiles of mma_tile.h require.
QACG_DEVICE char* shared_memory() {
  extern __shared__ __align__(256) char memory[];
  return memory;
}

// Launches a kernel on a stream with Shape::kThreads and Shape::kShared bytes of shared memory for each block; returns
// null or the error as text. Does nothing for 0 blocks.
template <auto kernel, typename Shape, typename... Parameters>
const char* launch(int64_t blocks, void* stream, const Parameters&... parameters) {
  static_assert(Shape::kShared <= 99 * 1024, "GPUs of compute capability 8.6, 8.9 and 12.0 have no more");
  if (blocks == 0) return nullptr;
  if (blocks > 0x7fffffff) return "expected at most 2^31 - 1 thread blocks for the call, got more; split the batch";
  const char* refused = allow_shared_memory<kernel, Shape::kShared>();
  if (refused) return refused;
  // clang-format off: in a header, it parses the end of a launch as the end of two templates
  kernel<<<static_cast<unsigned>(blocks), Shape::kThreads, Shape::kShared, static_cast<cudaStream_t>(stream)>>>(
      parameters...);
  // clang-format on
  return error_text(cudaGetLastError());
}

}  // namespace qacg::cuda

#endif

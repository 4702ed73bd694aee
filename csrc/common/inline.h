// Marks a function that CPU and GPU code share. Internal linkage: each translation unit keeps its own copy, because
// they are compiled for different instruction sets (csrc/README.md).
#pragma once

#if defined(__CUDACC__)
#define QACG_SHARED static __host__ __device__ __forceinline__
#else
#define QACG_SHARED static inline __attribute__((always_inline))
#endif

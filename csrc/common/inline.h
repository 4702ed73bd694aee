// Marks a function that CPU and GPU code share. The function has internal linkage: each translation unit has its own
// copy, because translation units are compiled for different instruction sets (csrc/README.md).
#pragma once

#if defined(__CUDACC__)
#define QACG_SHARED static __host__ __device__ __forceinline__
#else
#define QACG_SHARED static inline __attribute__((always_inline))
#endif

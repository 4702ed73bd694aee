// The mark of a function that CPU and GPU code share. Internal linkage: translation units compiled with the flags of
// different instruction sets keep copies of their own (csrc/README.md).
#pragma once

#if defined(__CUDACC__)
#define QACG_SHARED static __host__ __device__ __forceinline__
#else
#define QACG_SHARED static inline __attribute__((always_inline))
#endif

// Properties of the library that qacg_kernels/backends/cuda reads through ctypes.
#include "cuda_intrinsics.h"

// The build passes QACG_GPUS with nvcc's flags, for example 8.0:9.0:10.0+PTX.
#if !defined(QACG_GPUS)
#define QACG_GPUS
#endif
#define QACG_TEXT(words) QACG_TEXT_AS_IT_IS(words)
#define QACG_TEXT_AS_IT_IS(words) #words

#define QACG_EXPORT extern "C" __attribute__((visibility("default")))

// The GPUs that this library has code for: names of TORCH_CUDA_ARCH_LIST, separated by colons.
QACG_EXPORT const char* qacg_cuda_gpus() { return QACG_TEXT(QACG_GPUS); }

// The version of CUDA that this library was compiled with: 1000 * major + 10 * minor.
QACG_EXPORT int32_t qacg_cuda_compiled_version() { return qacg::cuda::kCompiledVersion; }

// The newest version of CUDA that the driver supports, in the same form; 0 without a driver.
QACG_EXPORT int32_t qacg_cuda_driver_version() { return qacg::cuda::driver_version(); }

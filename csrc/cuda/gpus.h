// Which GPUs this library has code for, and whether the current device has Hopper's wgmma.
#pragma once

#include <string_view>

#if !defined(QACG_EMULATED)
#include "shared_memory.h"
#endif

// The build passes QACG_GPUS with nvcc's flags, for example 8.0:9.0a:10.0+PTX.
#if !defined(QACG_GPUS)
#define QACG_GPUS
#endif
#define QACG_TEXT(words) QACG_TEXT_AS_IT_IS(words)
#define QACG_TEXT_AS_IT_IS(words) #words

namespace qacg::cuda {

// The GPUs of this library, separated by colons and named as in TORCH_CUDA_ARCH_LIST.
constexpr const char* kGpus = QACG_TEXT(QACG_GPUS);

constexpr bool has_code_for(std::string_view gpu) {
  std::string_view left = kGpus;
  while (true) {
    const auto end = left.find(':');
    if (left.substr(0, end) == gpu) return true;
    if (end == std::string_view::npos) return false;
    left.remove_prefix(end + 1);
  }
}

#if !defined(QACG_EMULATED)
// Sets `there` if the current device has the instructions of wgmma.h and this library has code for it.
inline const char* find_wgmma(bool* there) {
  *there = false;
  if (!has_code_for("9.0a")) return nullptr;
  int device = 0, major = 0, minor = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  *there = error == cudaSuccess && major == 9 && minor == 0;
  return error_text(error);
}
#endif

}  // namespace qacg::cuda

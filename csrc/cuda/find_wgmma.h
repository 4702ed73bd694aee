// Whether the current device has the instructions of wgmma.h, and this library code for it.
#pragma once

#if defined(QACG_EMULATED)
#include "wgmma.h"
#else

#include "gpus.h"
#include "shared_memory.h"

namespace qacg::cuda {

inline const char* find_wgmma(bool* there) {
  *there = false;
  if (!has_code_for("9.0a")) return nullptr;
  int device = 0, major = 0, minor = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  *there = error == cudaSuccess && major == 9 && minor == 0;
  return words_for(error);
}

}  // namespace qacg::cuda

#endif

// Properties of the library that qacg_kernels/backends/cuda reads through ctypes.
#include "mma_launch.h"

// The build passes QACG_GPUS with nvcc's flags, for example 8.0:9.0:10.0+PTX.
#if !defined(QACG_GPUS)
#define QACG_GPUS
#endif
#define QACG_TEXT(words) QACG_TEXT_AS_IT_IS(words)
#define QACG_TEXT_AS_IT_IS(words) #words

#define QACG_EXPORT extern "C" __attribute__((visibility("default")))

namespace qacg::cuda::mma {
namespace {

template <int kDim>
int64_t shared_memory_of(bool backward) {
  constexpr int64_t rows = RowsShape<kDim>::kShared;
  constexpr int64_t keys = kDim >= 64 ? NarrowKeysShape<kDim>::kShared : KeysShape<kDim>::kShared;
  return !backward ? ForwardShape<kDim>::kShared : rows > keys ? rows : keys;
}

}  // namespace
}  // namespace qacg::cuda::mma

// The GPUs that this library has code for: names of TORCH_CUDA_ARCH_LIST, separated by colons.
QACG_EXPORT const char* qacg_cuda_gpus() { return QACG_TEXT(QACG_GPUS); }

// The version of CUDA that this library was compiled with: 1000 * major + 10 * minor.
QACG_EXPORT int32_t qacg_cuda_compiled_version() { return qacg::cuda::kCompiledVersion; }

// The newest version of CUDA that the driver supports, in the same form; 0 without a driver.
QACG_EXPORT int32_t qacg_cuda_driver_version() { return qacg::cuda::driver_version(); }

// Bytes of shared memory per block that the tensor-core path needs, for head sizes up to 128: of the tiled forward, or
// of the larger of the backward's two passes in its smallest shape.
QACG_EXPORT int64_t qacg_cuda_shared_memory(int32_t head_dim, int32_t backward) {
  using namespace qacg::cuda::mma;
  if (head_dim <= 32) return shared_memory_of<32>(backward);
  return head_dim <= 64 ? shared_memory_of<64>(backward) : shared_memory_of<128>(backward);
}

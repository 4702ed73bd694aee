// What backends/cuda.py asks of the library itself, by ctypes.
#include "mma_launch.h"

// setup.py gives it beside the flags that it stands for: 8.0:9.0a:10.0+PTX, say.
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
  constexpr int64_t rows = RowsShape<kDim>::kShared, keys = KeysShape<kDim>::kShared;
  return !backward ? ForwardShape<kDim>::kShared : rows > keys ? rows : keys;
}

}  // namespace
}  // namespace qacg::cuda::mma

// The GPUs that this library has code for, as TORCH_CUDA_ARCH_LIST names them, with colons between.
QACG_EXPORT const char* qacg_cuda_gpus() { return QACG_TEXT(QACG_GPUS); }

// Bytes of shared memory that a block of the tensor-core path takes, for a head size up to 128: the forward in its
// smaller form, or the larger of the backward's two passes.
QACG_EXPORT int64_t qacg_cuda_shared_memory(int32_t head_dim, int32_t backward) {
  using namespace qacg::cuda::mma;
  if (head_dim <= 32) return shared_memory_of<32>(backward);
  return head_dim <= 64 ? shared_memory_of<64>(backward) : shared_memory_of<128>(backward);
}

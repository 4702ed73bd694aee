// The tensor-core path in bfloat16.
#include "mma_launch.h"

namespace qacg::cuda {

const char* run_mma_forward_bfloat16(const Problem& p, void* stream, bool* launched) {
  return mma::run_forward<Bfloat16>(p, stream, launched);
}

const char* run_mma_backward_bfloat16(const Problem& p, const Gradients& g, void* stream, bool* launched) {
  return mma::run_backward<Bfloat16>(p, g, stream, launched);
}

}  // namespace qacg::cuda

// The tensor-core path in float16.
#include "mma_launch.h"

namespace qacg::cuda {

const char* run_mma_forward_float16(const Problem& p, void* stream, bool* launched) {
  return mma::run_forward<Float16>(p, stream, launched);
}

const char* run_mma_backward_float16(const Problem& p, const Gradients& g, void* stream, bool* launched) {
  return mma::run_backward<Float16>(p, g, stream, launched);
}

}  // namespace qacg::cuda

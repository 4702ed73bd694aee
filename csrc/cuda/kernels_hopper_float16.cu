// The Hopper path in float16.
#include "hopper_forward.h"

namespace qacg::cuda {

const char* run_hopper_forward_float16(const Problem& p, void* stream, bool* launched) {
  return mma::run_hopper_forward<Float16>(p, stream, launched);
}

}  // namespace qacg::cuda

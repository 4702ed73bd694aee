// The Hopper path in bfloat16.
#include "hopper_forward.h"

namespace qacg::cuda {

const char* run_hopper_forward_bfloat16(const Problem& p, void* stream, bool* launched) {
  return mma::run_hopper_forward<Bfloat16>(p, stream, launched);
}

}  // namespace qacg::cuda

// The forward and backward in bfloat16.
#include "mma_launch.h"

namespace qacg::cuda {

template const char* run_forward<Bfloat16>(const Problem&, void*);
template const char* run_backward<Bfloat16>(const Problem&, const Gradients&, void*);

}  // namespace qacg::cuda

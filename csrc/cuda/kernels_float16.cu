// The forward and backward in float16.
#include "mma_launch.h"

namespace qacg::cuda {

template const char* run_forward<Float16>(const Problem&, void*);
template const char* run_backward<Float16>(const Problem&, const Gradients&, void*);

}  // namespace qacg::cuda

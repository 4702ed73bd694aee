// aarch64 CPUs with the matrix products of bfloat16 (FEAT_BF16: Armv8.6, and some before it).
#define QACG_ISA neon_bf16
#include "engine_neon_bf16.h"
#include "kernels.h"

namespace qacg {
// A const object has internal linkage unless an extern declaration comes first.
extern const Kernels kNeonBf16Bfloat16;
const Kernels kNeonBf16Bfloat16 = neon_bf16::Table<neon_bf16::NeonBf16Engine>::kernels("neon_bf16");
}  // namespace qacg

// x86-64 CPUs with AVX-512 and its bfloat16 instructions.
#define QACG_ISA avx512_bf16
#include "bf16_gain.h"
#include "engine_bf16.h"
#include "kernels.h"

namespace qacg {
// A const object has internal linkage unless an extern declaration comes first.
extern const Kernels kAvx512Bf16Bfloat16;
const Kernels kAvx512Bf16Bfloat16 = avx512_bf16::Table<avx512_bf16::Bfloat16Engine>::kernels("avx512_bf16");

double bfloat16_gain();
double bfloat16_gain() { return avx512_bf16::bfloat16_gain(); }
}  // namespace qacg

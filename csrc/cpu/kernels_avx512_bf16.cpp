// x86-64 CPUs with AVX-512 and its bfloat16 instructions.
#define QACG_ISA avx512_bf16
#include "engine_bf16.h"
#include "kernels.h"

namespace qacg {
// A constant has no external name unless it is declared so first.
extern const Kernels kAvx512Bf16Bfloat16;
const Kernels kAvx512Bf16Bfloat16 = avx512_bf16::Table<avx512_bf16::Bfloat16Engine>::kernels("avx512_bf16");
}  // namespace qacg

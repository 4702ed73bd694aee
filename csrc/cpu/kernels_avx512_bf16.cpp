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

// Bursts of about 0.1 ms; they return their FLOP.
constexpr int kSteps = 20000, kFlop = 2 * 16 * avx512_bf16::kChains * kSteps;
double fma_burst(), vdpbf16ps_burst();
double fma_burst() {
  avx512_bf16::float32_ticks(kSteps);
  return kFlop;
}
double vdpbf16ps_burst() {
  avx512_bf16::bfloat16_ticks(kSteps);
  return 2.0 * kFlop;
}
}  // namespace qacg

// Measures how many products per second vdpbf16ps computes relative to float32's multiply-add, on registers only, and
// runs products of either kind for the rates of qacg_cpu_product_rate.
//
// The ratio is not looked up by the processor's name, because it differs between makers and generations, and a virtual
// machine may hide both. Bursts of less than a microsecond alternate between the two instructions, and the shortest
// burst of each counts. So an interrupt, a change of the clock rate or the power-up of wide registers, which lengthen
// some bursts, do not change the ratio.
#pragma once

#include "vec.h"

namespace QACG_ISA {

// More independent sums than two ports need to hide an instruction's latency.
constexpr int kChains = 12, kBurst = 160, kBursts = 40;

template <typename F>
QACG_INLINE uint64_t burst_ticks(int steps, F instruction) {
  __m512 sums[kChains];
#pragma GCC unroll 12
  for (int chain = 0; chain < kChains; ++chain) sums[chain] = _mm512_setzero_ps();
  _mm_lfence();
  const uint64_t begin = __rdtsc();
  for (int step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) {
      sums[chain] = instruction(sums[chain]);
      asm volatile("" : "+v"(sums[chain]));
    }
  }
  _mm_lfence();
  return __rdtsc() - begin;
}

QACG_INLINE __m512 operand() {
  __m512 x = _mm512_set1_ps(0.5f);
  asm volatile("" : "+v"(x));
  return x;
}

QACG_INLINE uint64_t float32_ticks(int steps) {
  const __m512 x = operand();
  return burst_ticks(steps, [x](__m512 sum) QACG_INLINE_LAMBDA { return _mm512_fmadd_ps(x, x, sum); });
}

QACG_INLINE uint64_t bfloat16_ticks(int steps) {
  const __m512bh x = (__m512bh)operand();
  return burst_ticks(steps, [x](__m512 sum) QACG_INLINE_LAMBDA { return _mm512_dpbf16_ps(sum, x, x); });
}

inline double bfloat16_gain() {
  uint64_t float32 = ~uint64_t{0}, bfloat16 = ~uint64_t{0};
  for (int n = 0; n < kBursts; ++n) {
    const uint64_t single = float32_ticks(kBurst), pairs = bfloat16_ticks(kBurst);
    float32 = single < float32 ? single : float32;
    bfloat16 = pairs < bfloat16 ? pairs : bfloat16;
  }
  return 2.0 * float32 / bfloat16;
}

}  // namespace QACG_ISA

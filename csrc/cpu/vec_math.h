// exp2 and the sigmoid on a register, branch-free.
#pragma once

#include "vec.h"

namespace QACG_ISA {

// 2^x for x <= 126; exact 0 below -127; NaN stays NaN. Relative error below 2.5e-7. The polynomials are minimax ones of
// degree 5, their constant terms rounded to 1.
#if defined(__AVX512F__)
// 2^(x - floor(x)) by the polynomial, times 2^floor(x) by one instruction, which takes a hundred cycles for a denormal
// unless they are flushed (FlushDenormals).
QACG_INLINE Vec exp2(Vec x) {
  const Vec f = (Vec)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  Vec p = splat(1.8671300819070081e-3f);
  p = p * f + 9.017030284436749e-3f;
  p = p * f + 5.5799913145968064e-2f;
  p = p * f + 2.4016445013606755e-1f;
  p = p * f + 6.93151311807523e-1f;
  p = p * f + 1.0f;
  return (Vec)_mm512_scalef_ps((__m512)p, (__m512)x);
}
#else
// Adding 1.5 * 2^23 + 127 leaves round(x) + 127 in the low bits of the sum. These bits, shifted by 23, are the float
// 2^round(x) (0 for -127).
QACG_INLINE Vec exp2(Vec x) {
  constexpr float kShift = 12582912.0f + 127.0f;
  x = at_least(x, splat(-127.0f));
  const Vec shifted = x + kShift;
  const Vec f = x - (shifted - kShift);
#if defined(__aarch64__)
  // Evaluated by pairs: a multiply-add overwrites its addend, so each constant as an addend costs a move. With pairs,
  // only half of the constants are addends.
  Vec p = 1.3276472454890609e-3f * f + 9.675540961325169e-3f;
  p = p * (f * f) + (5.550713092088699e-2f * f + 2.4022120237350464e-1f);
  p = p * (f * f) + (6.931469440460205e-1f * f + 1.0f);
#else
  Vec p = splat(1.3276472454890609e-3f);
  p = p * f + 9.675540961325169e-3f;
  p = p * f + 5.550713092088699e-2f;
  p = p * f + 2.4022120237350464e-1f;
  p = p * f + 6.931469440460205e-1f;
  p = p * f + 1.0f;
#endif
  return p * (Vec)((UintVec)shifted << 23);
}
#endif

// While an object of this class exists, results too small for a normal float are 0 on its thread.
class FlushDenormals {
 public:
#if defined(__AVX512F__)
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON); }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#endif
};

// 1 / (1 + 2^x); sigmoid(t) is that of x = -t log2 e. x counts as at most 125, so that the result is no denormal.
QACG_INLINE Vec inverse_one_plus_exp2(Vec x) { return reciprocal(1.0f + exp2(at_most(x, splat(125.0f)))); }

// The sigmoid of a score whose exponent of 2 is score * factor + bias.
QACG_INLINE Vec biased_sigmoid(Vec score, Vec factor, Vec bias) {
  return inverse_one_plus_exp2(multiply_subtract(score, -factor, bias));
}

}  // namespace QACG_ISA

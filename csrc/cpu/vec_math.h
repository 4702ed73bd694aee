// exp2 and the sigmoid on a register, branch-free.
#pragma once

#include "pack.h"

namespace QACG_ISA {

// The degree of the polynomial for 2^f. Its relative error is below 2^-23 for float32; for 16-bit results, which round
// P to 8 or 11 bits, it is a twentieth of one rounding: 2^-13 (bfloat16) and 2^-18 (float16).
template <typename Scalar>
constexpr int kExp2Degree = 5;
template <>
inline constexpr int kExp2Degree<HalfBits> = 3;
template <>
inline constexpr int kExp2Degree<Float16> = 4;

// Minimax coefficients of f^degree, ..., f^1, for a constant term of 1. AVX-512 has f in [0, 1), the others in
// [-0.5, 0.5].
template <int kDegree>
struct Exp2;
#if defined(__AVX512F__)
template <>
struct Exp2<3> {
  static constexpr float k[] = {7.70670473575592e-2f, 2.2764499485492706e-1f, 6.951167583465576e-1f};
};
template <>
struct Exp2<4> {
  static constexpr float k[] = {1.3426684774458408e-2f, 5.2242472767829895e-2f, 2.412802129983902e-1f,
                                6.930448412895203e-1f};
};
template <>
struct Exp2<5> {
  static constexpr float k[] = {1.8671300819070081e-3f, 9.017030284436749e-3f, 5.5799913145968064e-2f,
                                2.4016445013606755e-1f, 6.93151311807523e-1f};
};
#else
template <>
struct Exp2<3> {
  static constexpr float k[] = {5.500893294811249e-2f, 2.4221095442771912e-1f, 6.932829022407532e-1f};
};
template <>
struct Exp2<4> {
  static constexpr float k[] = {9.582852944731712e-3f, 5.5906426161527634e-2f, 2.4024099111557007e-1f,
                                6.931241750717163e-1f};
};
template <>
struct Exp2<5> {
  static constexpr float k[] = {1.3276472454890609e-3f, 9.675540961325169e-3f, 5.550713092088699e-2f,
                                2.4022120237350464e-1f, 6.931469440460205e-1f};
};
#endif

template <int kDegree>
QACG_INLINE Vec polynomial(Vec f) {
  constexpr const float* k = Exp2<kDegree>::k;
#if defined(__aarch64__)
  // Evaluated by pairs: a multiply-add overwrites its addend, so each constant as an addend costs a move. With pairs,
  // only half of the constants are addends.
  if constexpr (kDegree == 5) {
    return ((k[0] * f + k[1]) * (f * f) + (k[2] * f + k[3])) * (f * f) + (k[4] * f + 1.0f);
  }
#endif
  Vec p = splat(k[0]);
#pragma GCC unroll 4
  for (int n = 1; n < kDegree; ++n) p = p * f + k[n];
  return p * f + 1.0f;
}

// 2^x for x <= 126; exact 0 below -127; NaN stays NaN.
#if defined(__AVX512F__)
// 2^(x - floor(x)) by the polynomial, times 2^floor(x) by one instruction, which takes a hundred cycles for a denormal
// unless they are flushed (FlushDenormals). This also serves larger x, up to infinity.
template <typename Scalar>
QACG_INLINE Vec exp2(Vec x) {
  const Vec f = (Vec)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  return (Vec)_mm512_scalef_ps((__m512)polynomial<kExp2Degree<Scalar>>(f), (__m512)x);
}
#else
// Adding 1.5 * 2^23 + 127 leaves round(x) + 127 in the low bits of the sum. These bits, shifted by 23, are the float
// 2^round(x) (0 for -127).
template <typename Scalar>
QACG_INLINE Vec exp2(Vec x) {
  constexpr float kShift = 12582912.0f + 127.0f;
  x = at_least(x, splat(-127.0f));
  const Vec shifted = x + kShift;
  return polynomial<kExp2Degree<Scalar>>(x - (shifted - kShift)) * (Vec)((UintVec)shifted << 23);
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

// 1 / (1 + 2^x); sigmoid(t) is that of x = -t log2 e. x counts as at most 125, so that the result is no denormal;
// AVX-512's estimate flushes denormals itself. With `kEstimates`, 16-bit results take an estimate of the reciprocal
// that is exact enough for them, but not for gradients: those of a saturated sigmoid need 1 - sigmoid.
template <typename Scalar, bool kEstimates>
QACG_INLINE Vec inverse_one_plus_exp2(Vec x) {
  constexpr int kBits = __is_same(Scalar, float) ? 24 : __is_same(Scalar, HalfBits) ? 11 : 14;
  constexpr bool kExact = !kEstimates || kBits > kEstimateBits;
#if defined(__AVX512F__)
  constexpr bool kLimited = kExact;
#else
  constexpr bool kLimited = true;
#endif
  const Vec v = 1.0f + exp2<Scalar>(kLimited ? at_most(x, splat(125.0f)) : x);
  return kExact ? reciprocal(v) : reciprocal_estimate(v);
}

// The sigmoid of a score whose exponent of 2 is score * factor + bias.
template <typename Scalar, bool kEstimates = true>
QACG_INLINE Vec biased_sigmoid(Vec score, Vec factor, Vec bias) {
  return inverse_one_plus_exp2<Scalar, kEstimates>(multiply_subtract(score, -factor, bias));
}

}  // namespace QACG_ISA

// The arithmetic of one attention entry, equations 3 to 14 of MATH.md. Scores are exponents of 2: T log2 e.
#pragma once

#if !defined(__CUDACC__)
#include <math.h>
#endif

#include "inline.h"
#include "log2e.h"

namespace qacg {

// exp2 and reciprocal for float32 results: correctly rounded, or nearly so.
struct Accurate {
  QACG_SHARED float exp2(float x) { return ::exp2f(x); }
  QACG_SHARED float inverse(float x) { return 1.0f / x; }
};

// exp2 and reciprocal for 16-bit results: those of the special-function unit, within 2 units in the last place.
struct Fast {
  QACG_SHARED float exp2(float x) {
#if defined(__CUDA_ARCH__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return ::exp2f(x);
#endif
  }
  QACG_SHARED float inverse(float x) {
#if defined(__CUDA_ARCH__)
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return 1.0f / x;
#endif
  }
};

// For very negative scores 2^-score overflows to infinity, whose reciprocal is the correct 0.
template <typename Math>
QACG_SHARED float sigmoid(float score) {
  return Math::inverse(1.0f + Math::exp2(-score));
}

// The two numbers with which a row's scores become P: P = 2^(score - shift) normalise.
struct SoftmaxRow {
  float shift, normalise;
};

// Computes a SoftmaxRow from the maximum and the sum that the forward saves. A row that sees no key has P = 0; if the
// sum is NaN, P must be NaN.
QACG_SHARED SoftmaxRow softmax_row(float row_max, float row_sum) {
  const bool empty = row_sum == 0.0f;
  // The maximum is also -inf if all scores are NaN.
  return {row_max == -INFINITY ? 0.0f : row_max, empty ? 0.0f : 1.0f / row_sum};
}

struct GradientCell {
  float attention, d_score, d_context_score, d_gate;
};

// Eq. 7, 11 and 13, without the factor `scale` of the scores. `keep` is Z, `d_out_value` is (dO V^T)ij.
QACG_SHARED GradientCell gradient_cell(float softmax, float sigmoid, float gate, float keep, float d_out_value,
                                       float delta, float quasi_scale) {
  const float quasi = quasi_scale * sigmoid;
  const float d_attention = keep == 0.0f ? 0.0f : keep * d_out_value;
  const float d_gate = d_attention * quasi;
  return {keep == 0.0f ? 0.0f : keep * (softmax + gate * quasi), softmax * (d_attention - delta),
          gate * d_gate * (1.0f - sigmoid), d_gate};
}

// The gradient of x from that of a gate sigmoid(x), eq. 14.
QACG_SHARED float gate_logit_gradient(float d_gate, float gate) { return d_gate * gate * (1.0f - gate); }

}  // namespace qacg

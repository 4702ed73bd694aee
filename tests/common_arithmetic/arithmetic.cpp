// The arithmetic of csrc/common as functions of arrays, for tests/kernels/test_common_arithmetic.py.
#include "../../csrc/common/attention_math.h"
#include "../../csrc/common/dropout.h"
#include "../../csrc/common/half_types.h"

using namespace qacg;

extern "C" {

void philox_words(uint32_t c0, uint32_t c1, uint32_t c2, uint64_t seed, uint32_t* words) {
  const PhiloxWords draw = philox(c0, c1, c2, seed);
  for (int n = 0; n < 4; ++n) words[n] = draw.word[n];
}

uint32_t threshold_of(double dropout_p) { return drop_threshold(dropout_p); }
float scale_of(uint32_t threshold) { return keep_scale(threshold); }

void keep_row(uint64_t seed, uint32_t threshold, uint32_t sequence_head, uint32_t query, int64_t keys, uint8_t* keep) {
  for (int64_t j = 0; j < keys; ++j) keep[j] = keeps_cell(seed, threshold, sequence_head, query, j);
}

void widen_float16(const uint16_t* bits, float* to, int64_t count) {
  for (int64_t n = 0; n < count; ++n) to[n] = widen(Float16{bits[n]});
}

void widen_bfloat16(const uint16_t* bits, float* to, int64_t count) {
  for (int64_t n = 0; n < count; ++n) to[n] = widen(Bfloat16{bits[n]});
}

void narrow_float16(const float* x, uint16_t* to, int64_t count) {
  for (int64_t n = 0; n < count; ++n) {
    Float16 narrowed;
    narrow(x[n], narrowed);
    to[n] = narrowed.bits;
  }
}

void narrow_bfloat16(const float* x, uint16_t* to, int64_t count) {
  for (int64_t n = 0; n < count; ++n) {
    Bfloat16 narrowed;
    narrow(x[n], narrowed);
    to[n] = narrowed.bits;
  }
}

void sigmoids(const float* scores, float* to, int64_t count) {
  for (int64_t n = 0; n < count; ++n) to[n] = sigmoid<Accurate>(scores[n]);
}

void softmax_of_scores(const float* scores, float row_max, float row_sum, float* to, int64_t count) {
  const SoftmaxRow row = softmax_row(row_max, row_sum);
  for (int64_t n = 0; n < count; ++n) to[n] = Accurate::exp2(scores[n] - row.shift) * row.normalise;
}

// x: softmax, sigmoid, gate, keep, d_out_value, delta, quasi_scale; to: attention, d_score, d_context_score, d_gate.
void gradient_of_cell(const float* x, float* to) {
  const GradientCell cell = gradient_cell(x[0], x[1], x[2], x[3], x[4], x[5], x[6]);
  to[0] = cell.attention;
  to[1] = cell.d_score;
  to[2] = cell.d_context_score;
  to[3] = cell.d_gate;
}
}

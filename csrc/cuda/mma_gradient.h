// Gradients of a strip's attention entries, equations 9 to 13, for both passes of the backward with mma.sync.
#pragma once

#include "mma_strip.h"

namespace qacg::cuda::mma {

// Row terms of the two rows of a thread.
struct StripRows {
  SoftmaxRow softmax[2];
  float lambda[2], delta[2];
  RowBiases quasi_biases;
};

// The softmax of row i; zero beyond the last row.
QACG_DEVICE SoftmaxRow softmax_of_row(const Problem& p, const Sequence& s, int i) {
  return i < s.queries ? softmax_row(at(p.row_max, s, i), at(p.row_sum, s, i)) : SoftmaxRow{0.0f, 0.0f};
}

// In: the products Q K^T, Qc Kc^T and dO V^T. Out, in their place: dT and dTc without their factor `scale`, and A.
template <int kTiles>
struct Strip {
  float score[kTiles][4], context[kTiles][4], out_value[kTiles][4];
};

// Replaces a Strip's products by gradients and A. Adds d lambda of every entry to sums over the strip's rows (row_sums)
// and, for a column gate, over its columns (column_sums).
template <int kTiles>
QACG_DEVICE void strip_gradients(const Problem& p, const Sequence& s, int first_row, int first_key,
                                 const StripRows& rows, const float* key_mask, const float* key_gate_parts,
                                 const KeepBits& keep, Strip<kTiles>& strip, float (&row_sums)[2],
                                 float (&column_sums)[kTiles][2]) {
  const float factor = p.scale * kLog2e;
  // The usual case. Tests for hidden and dropped entries would be a quarter of all instructions.
  if (!p.seed && !p.column_gate && sees_all<8 * kTiles>(p, s, first_row, first_key, key_mask)) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const SoftmaxRow& row = rows.softmax[e / 2];
        const float context = strip.context[t][e] * factor + rows.quasi_biases.value[e / 2];
        const GradientCell gradient =
            gradient_cell(Fast::exp2(strip.score[t][e] * factor - row.shift) * row.normalise, sigmoid<Fast>(context),
                          rows.lambda[e / 2], 1.0f, strip.out_value[t][e], rows.delta[e / 2], p.quasi_scale);
        strip.score[t][e] = gradient.d_score;
        strip.context[t][e] = gradient.d_context_score;
        strip.out_value[t][e] = gradient.attention;
        row_sums[e / 2] += gradient.d_gate;
      }
    }
    return;
  }
  visit_entries<kTiles>(p, s, first_row, first_key, key_mask, [&](int t, int e, bool hidden, float mask) {
    strip.score[t][e] = masked_score(strip.score[t][e], factor, hidden, mask, kNothing);
    strip.context[t][e] = masked_score(strip.context[t][e], factor, hidden, mask, rows.quasi_biases.value[e / 2]);
  });
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int half = e / 2;
      const float score = strip.score[t][e], context = strip.context[t][e];
      const bool hidden = score == -INFINITY && context == -INFINITY;
      const float kept = !p.seed ? 1.0f : keep.keeps(first_key, t, e) ? p.keep_scale : 0.0f;
      const GradientCell gradient =
          gradient_cell(Fast::exp2(score - rows.softmax[half].shift) * rows.softmax[half].normalise,
                        sigmoid<Fast>(context), rows.lambda[half] - key_gate_parts[column_of(t, e)], kept,
                        strip.out_value[t][e], rows.delta[half], p.quasi_scale);
      // dO V^T of a hidden entry may be NaN, although P is 0.
      strip.score[t][e] = hidden ? 0.0f : gradient.d_score;
      strip.context[t][e] = hidden ? 0.0f : gradient.d_context_score;
      strip.out_value[t][e] = hidden ? 0.0f : gradient.attention;
      row_sums[half] += hidden ? 0.0f : gradient.d_gate;
      column_sums[t][e % 2] += hidden ? 0.0f : gradient.d_gate;
    }
  }
}

// Turns sums into the gradient of a row of query or key: sums scale + logit v, for dims from first_dim on.
template <int kTiles>
QACG_DEVICE void finish_sums(const Problem& p, const Sequence& s, const float (&logits)[2], int vector, int first_dim,
                             float (&sums)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sums[t][e] *= p.scale;
      const int d = first_dim + column_of(t, e);
      if (has_gate_vectors(p) && d < p.head_dim) sums[t][e] += logits[e / 2] * gate_vector(p, s, vector, d);
    }
  }
}

}  // namespace qacg::cuda::mma

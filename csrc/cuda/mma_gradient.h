// Gradients of a strip's attention entries, equations 9 to 13, for both passes of the backward with mma.sync.
#pragma once

#include "mma_strip.h"

namespace qacg::cuda::mma {

// The two rows of a thread.
struct StripRows {
  RowTerms terms[2];
  RowBiases quasi_biases;
};

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
  const auto finish = [&](int t, int e, float score, float context, float lambda, float kept, bool hidden) {
    const RowTerms& row = rows.terms[e / 2];
    GradientCell cell = gradient_cell(Fast::exp2(score - row.shift) * row.normalise, sigmoid<Fast>(context), lambda,
                                      kept, strip.out_value[t][e], row.delta, p.quasi_scale);
    if (hidden) cell = {};  // dO V^T may be NaN, although P is 0
    strip.score[t][e] = cell.d_score;
    strip.context[t][e] = cell.d_context_score;
    strip.out_value[t][e] = cell.attention;
    row_sums[e / 2] += cell.d_gate;
    return cell.d_gate;
  };
  // The usual case. Tests for hidden and dropped entries would be a quarter of all instructions.
  if (!p.seed && !p.column_gate && sees_all<8 * kTiles>(p, s, first_row, first_key, key_mask)) {
    for_entries<kTiles>([&](int t, int e) {
      finish(t, e, strip.score[t][e] * factor, strip.context[t][e] * factor + rows.quasi_biases.value[e / 2],
             rows.terms[e / 2].lambda, 1.0f, false);
    });
    return;
  }
  visit_entries<kTiles>(p, s, first_row, first_key, key_mask, [&](int t, int e, bool hidden, float mask) {
    strip.score[t][e] = masked_score(strip.score[t][e], factor, hidden, mask, kNothing);
    strip.context[t][e] = masked_score(strip.context[t][e], factor, hidden, mask, rows.quasi_biases.value[e / 2]);
  });
  for_entries<kTiles>([&](int t, int e) {
    const float score = strip.score[t][e], context = strip.context[t][e];
    const float lambda = rows.terms[e / 2].lambda - key_gate_parts[column_of(t, e)];
    const float kept = !p.seed ? 1.0f : keep.keeps(first_key, t, e) ? p.keep_scale : 0.0f;
    const bool hidden = score == -INFINITY && context == -INFINITY;
    column_sums[t][e % 2] += finish(t, e, score, context, lambda, kept, hidden);
  });
}

// Turns sums into the gradient of a row of query or key: sums scale + logit v, for dims from first_dim on.
template <int kTiles>
QACG_DEVICE void finish_sums(const Problem& p, const Sequence& s, const float (&logits)[2], int vector, int first_dim,
                             float (&sums)[kTiles][4]) {
  for_entries<kTiles>([&](int t, int e) { sums[t][e] *= p.scale; });
  if (!has_gate_vectors(p)) return;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int d = opaque(first_dim) + column_of(t, column);
      const float x = d < p.head_dim ? gate_vector(p, s, vector, d) : 0.0f;
      sums[t][column] += logits[0] * x;
      sums[t][column + 2] += logits[1] * x;
    }
  }
}

}  // namespace qacg::cuda::mma

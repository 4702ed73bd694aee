// The backward of the plain path, equations 9 to 14, in two passes without atomics: over queries (delta, gradients of
// queries and lambda), then over keys. Both recompute the scores.
#pragma once

#include "plain_tile.h"

namespace qacg::cuda::plain {

constexpr int64_t kRowsShared = 4 * kTileFloats * sizeof(float);
constexpr int64_t kKeysShared = 5 * kTileFloats * sizeof(float);

QACG_KERNEL(kThreads, 1) backward_rows(QACG_PARAMETER Problem p, QACG_PARAMETER Gradients g) {
  const Unit unit = unit_of(p, p.query_length, kTile);
  const Sequence& s = unit.sequence;
  if (unit.first >= s.queries) return;
  const int queries = s.queries - unit.first < kTile ? s.queries - unit.first : kTile;
  const int first_row = unit.first + first_owned();
  float* score_weights = reinterpret_cast<float*>(shared_memory());
  float* context_weights = score_weights + kTileFloats;
  float* own_tile = context_weights + kTileFloats;
  float* other_tile = own_tile + kTileFloats;
  const uint64_t seed = p.seed ? static_cast<uint64_t>(*p.seed) : 0;
  const Operand query{p.query, unit.first, queries}, grad{g.out, unit.first, queries};
  const Operand context_query{p.context_query, unit.first, queries};

  SoftmaxRow row[kOwned];
  float lambda[kOwned], quasi_bias[kOwned], delta[kOwned] = {}, d_lambda[kOwned] = {};
  for (int r = 0; r < kOwned; ++r) {
    const int i = first_row + r;
    const bool inside = i < s.queries;
    row[r] = inside ? softmax_row(at(p.row_max, s, i), at(p.row_sum, s, i)) : SoftmaxRow{0.0f, 0.0f};
    lambda[r] = inside ? lambda_of_row(p, s, i) : 0.0f;
    quasi_bias[r] = quasi_bias_of(p, s, i);
  }
  const int keys = seen_keys(p, s, unit.first + queries - 1);

  // Eq. 10: from O1 if the forward saved it, else from a pass over the keys.
  if (p.softmax_out.data) {
    for (int r = 0; r < kOwned && first_row + r < s.queries; ++r) {
      const int64_t out = offset_of(g.out, s, first_row + r), branch = offset_of(p.softmax_out, s, first_row + r);
      float sum = 0.0f;
      for (int d = lane(); d < p.head_dim; d += kWarp) {
        sum += read(p.element, g.out.data, out + d * g.out.dim) *
               read(p.element, p.softmax_out.data, branch + d * p.softmax_out.dim);
      }
      delta[r] = warp_sum(sum);
    }
  } else {
    for (int first_key = 0; first_key < keys; first_key += kTile) {
      const int count = keys - first_key < kTile ? keys - first_key : kTile;
      const Products scores = products(p, s, query, {p.key, first_key, count}, own_tile, other_tile);
      const Products out_values = products(p, s, grad, {p.value, first_key, count}, own_tile, other_tile);
      const int j = first_key + lane();
      for (int r = 0; r < kOwned; ++r) {
        const Scores t = scores_of(p, s, first_row + r, j, scores.value[r], 0.0f, 0.0f);
        const float keep = t.seen ? keep_at(p, s, seed, first_row + r, j) : 0.0f;
        const float softmax = t.seen ? exp2f(t.softmax - row[r].shift) * row[r].normalise : 0.0f;
        delta[r] += warp_sum(keep > 0.0f ? softmax * keep * out_values.value[r] : 0.0f);
      }
    }
  }

  Sums query_sum{}, context_sum{};
  for (int first_key = 0; first_key < keys; first_key += kTile) {
    const int count = keys - first_key < kTile ? keys - first_key : kTile;
    const Operand key{p.key, first_key, count}, context_key{p.context_key, first_key, count};
    const Products scores = products(p, s, query, key, own_tile, other_tile);
    const Products context_scores = products(p, s, context_query, context_key, own_tile, other_tile);
    const Products out_values = products(p, s, grad, {p.value, first_key, count}, own_tile, other_tile);
    const int j = first_key + lane();
    const float key_gate = key_gate_part(p, s, j);
    for (int r = 0; r < kOwned; ++r) {
      const Scores t = scores_of(p, s, first_row + r, j, scores.value[r], context_scores.value[r], quasi_bias[r]);
      const GradientCell gradient =
          t.seen ? gradient_cell(exp2f(t.softmax - row[r].shift) * row[r].normalise, sigmoid<Accurate>(t.context),
                                 lambda[r] - key_gate, keep_at(p, s, seed, first_row + r, j), out_values.value[r],
                                 delta[r], p.quasi_scale)
                 : GradientCell{};
      d_lambda[r] += warp_sum(gradient.d_gate);
      score_weights[(first_owned() + r) * kStride + lane()] = gradient.d_score;
      context_weights[(first_owned() + r) * kStride + lane()] = gradient.d_context_score;
    }
    add_weighted(p, s, key, score_weights, other_tile, query_sum);
    add_weighted(p, s, context_key, context_weights, other_tile, context_sum);
  }

#pragma unroll
  for (int r = 0; r < kOwned; ++r) {
    const int i = first_row + r;
    if (i >= s.queries) break;
    if (lane() == 0) terms_at(g, s, i) = {row[r].shift, row[r].normalise, lambda[r], delta[r]};
    float logit = 0.0f;
    if (lane() == 0) logit = finish_row_gate(p, g, s, i, d_lambda[r]);
    logit = warp_sum(logit);
    const auto through_gate = [&](int vector, int d) {
      return has_gate_vectors(p) ? logit * gate_vector(p, s, vector, d) : 0.0f;
    };
    write_row(p, s, g.query, i, [&](int c, int d) { return query_sum.value[r][c] * p.scale + through_gate(0, d); });
    write_row(p, s, g.context_query, i,
              [&](int c, int d) { return context_sum.value[r][c] * p.scale + through_gate(1, d); });
  }
}

QACG_KERNEL(kThreads, 1) backward_keys(QACG_PARAMETER Problem p, QACG_PARAMETER Gradients g) {
  const Unit unit = unit_of(p, p.key_length, kTile);
  const Sequence& s = unit.sequence;
  if (unit.first >= s.all_keys) return;
  const int first_key = unit.first + first_owned();
  const int seen = s.keys - unit.first < kTile ? s.keys - unit.first : kTile;
  float* weights = reinterpret_cast<float*>(shared_memory());
  float* score_weights = weights + kTileFloats;
  float* context_weights = score_weights + kTileFloats;
  float* own_tile = context_weights + kTileFloats;
  float* other_tile = own_tile + kTileFloats;
  const uint64_t seed = p.seed ? static_cast<uint64_t>(*p.seed) : 0;
  const Operand key{p.key, unit.first, seen}, value{p.value, unit.first, seen};
  const Operand context_key{p.context_key, unit.first, seen};

  Sums key_sum{}, context_sum{}, value_sum{};
  float d_lambda[kOwned] = {};
  // Causality hides these keys from the first queries; no query sees keys beyond the length.
  const int first = p.is_causal ? unit.first : 0, last = seen > 0 ? s.queries : 0;
  for (int first_query = first; first_query < last; first_query += kTile) {
    const int count = s.queries - first_query < kTile ? s.queries - first_query : kTile;
    const Operand query{p.query, first_query, count}, context_query{p.context_query, first_query, count};
    const Operand grad{g.out, first_query, count};
    const Products scores = products(p, s, key, query, own_tile, other_tile);
    const Products context_scores = products(p, s, context_key, context_query, own_tile, other_tile);
    const Products out_values = products(p, s, value, grad, own_tile, other_tile);
    const int i = first_query + lane();
    const bool inside = i < s.queries;
    const RowTerms row = inside ? terms_at(g, s, i) : RowTerms{};
    const float quasi_bias = quasi_bias_of(p, s, i);
    for (int r = 0; r < kOwned; ++r) {
      const int j = first_key + r;
      const Scores t = scores_of(p, s, i, j, scores.value[r], context_scores.value[r], quasi_bias);
      const GradientCell gradient =
          t.seen ? gradient_cell(exp2f(t.softmax - row.shift) * row.normalise, sigmoid<Accurate>(t.context),
                                 row.lambda - key_gate_part(p, s, j), keep_at(p, s, seed, i, j), out_values.value[r],
                                 row.delta, p.quasi_scale)
                 : GradientCell{};
      if (p.column_gate) d_lambda[r] += warp_sum(gradient.d_gate);
      const int index = (first_owned() + r) * kStride + lane();
      weights[index] = gradient.attention;
      score_weights[index] = gradient.d_score;
      context_weights[index] = gradient.d_context_score;
    }
    add_weighted(p, s, grad, weights, other_tile, value_sum);
    add_weighted(p, s, query, score_weights, other_tile, key_sum);
    add_weighted(p, s, context_query, context_weights, other_tile, context_sum);
  }

#pragma unroll
  for (int r = 0; r < kOwned; ++r) {
    const int j = first_key + r;
    if (j >= s.all_keys) break;
    float logit = 0.0f;
    if (lane() == 0) logit = finish_key_gate(p, g, s, j, d_lambda[r]);
    logit = warp_sum(logit);
    const auto through_gate = [&](int vector, int d) {
      return has_gate_vectors(p) ? logit * gate_vector(p, s, vector, d) : 0.0f;
    };
    write_row(p, s, g.value, j, [&](int c, int) { return value_sum.value[r][c]; });
    write_row(p, s, g.key, j, [&](int c, int d) { return key_sum.value[r][c] * p.scale + through_gate(2, d); });
    write_row(p, s, g.context_key, j,
              [&](int c, int d) { return context_sum.value[r][c] * p.scale + through_gate(3, d); });
  }
}

}  // namespace qacg::cuda::plain

// The backward's pass over queries with mma.sync: delta, gradients of query, context query and lambda. A block computes
// 64 queries of one head over tiles of keys. Five products; seven if the forward saved no O1 for delta.
#pragma once

#include "mma_gradient.h"

namespace qacg::cuda::mma {

template <int kDim>
struct RowsShape {
  static constexpr int kThreads = 128, kRows = 64;
  // With 128 dims registers suffice for 16 keys, and two blocks fit a multiprocessor of sm_80.
  static constexpr int kKeys = kDim > 64 ? 16 : 32;
  static constexpr int64_t kShared =
      (3 * kRows + 2 * 3 * kKeys) * kDim * 2 + 2 * arena_bytes(kRows * 4) + 2 * arena_bytes(2 * kKeys * 4);
};

template <typename Scalar, int kDim>
QACG_KERNEL(RowsShape<kDim>::kThreads, 1)
backward_rows(QACG_PARAMETER Problem p, QACG_PARAMETER Gradients g) {
  using Shape = RowsShape<kDim>;
  constexpr int kKeys = Shape::kKeys, kFragments = kKeys / 8, kDimFragments = kDim / 8;
  const Unit unit = unit_of(p, p.query_length, Shape::kRows);
  const Sequence& s = unit.sequence;
  if (unit.first >= s.queries) return;
  const int queries = s.queries - unit.first < Shape::kRows ? s.queries - unit.first : Shape::kRows;
  const int strip_row = warp() * kStrip, first_row = unit.first + strip_row;

  Arena arena;
  const auto query = arena.tile<kDim>(Shape::kRows), context_query = arena.tile<kDim>(Shape::kRows);
  const auto grad = arena.tile<kDim>(Shape::kRows);
  const auto all_keys = arena.tile<kDim>(2 * kKeys), all_context_keys = arena.tile<kDim>(2 * kKeys);
  const auto all_values = arena.tile<kDim>(2 * kKeys);
  float* deltas = arena.array<float>(Shape::kRows);
  float* quasi_biases = arena.array<float>(Shape::kRows);
  float* key_gate_parts = arena.array<float>(2 * kKeys);
  float* key_mask = arena.array<float>(2 * kKeys);

  load_rows<Scalar, Shape::kRows, Shape::kThreads>(p, s, p.query, unit.first, queries, query);
  load_rows<Scalar, Shape::kRows, Shape::kThreads>(p, s, p.context_query, unit.first, queries, context_query);
  load_rows<Scalar, Shape::kRows, Shape::kThreads>(p, s, g.out, unit.first, queries, grad);
  const int keys = visible_stop(p, s, 0, seen_keys(p, s, unit.first + queries - 1)), tiles = (keys + kKeys - 1) / kKeys;
  StripRows rows{};
  store_quasi_biases<Shape::kRows>(p, s, unit.first, quasi_biases);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = first_row + row_of(2 * half);
    rows.softmax[half] = softmax_of_row(p, s, i);
    rows.lambda[half] = i < s.queries ? lambda_of_row(p, s, i) : 0.0f;
  }
  KeepBits keep{};
  const auto draw = [&](int first_key) {
    if (p.seed && first_key % kDropoutBlock == 0) keep = draw_keep_bits(p, s, first_row, first_key);
  };

  // Eq. 10.
  if (p.softmax_out.data) {
    const int i = unit.first + thread_index() / 2;
    float delta = 0.0f;
    if (i < s.queries) {
      delta =
          half_dot(row_at<Scalar>(g.out, s, i), row_at<Scalar>(p.softmax_out, s, i), p.head_dim, thread_index() % 2);
    }
    delta += shuffle_xor(delta, 1);
    if (thread_index() % 2 == 0) deltas[thread_index() / 2] = delta;
    synchronise_block();
    rows.delta[0] = deltas[strip_row + row_of(0)];
    rows.delta[1] = deltas[strip_row + row_of(2)];
  } else {
    const auto load = [&](int n, int stage) {
      const int first_key = n * kKeys, count = keys - first_key;
      load_rows<Scalar, kKeys, Shape::kThreads>(p, s, p.key, first_key, count, all_keys.from(stage * kKeys));
      load_rows<Scalar, kKeys, Shape::kThreads>(p, s, p.value, first_key, count, all_values.from(stage * kKeys));
      load_key_mask<kKeys>(p, s, first_key, key_mask + stage * kKeys);
    };
    pipelined(tiles, load, [&](int n, int stage) {
      draw(n * kKeys);
      const float keep_scale = p.seed ? p.keep_scale : 1.0f;
      float score[kKeys / 8][4] = {}, out_value[kKeys / 8][4] = {};
      add_products<Scalar>(score, query, strip_row, all_keys.from(stage * kKeys), 0);
      add_products<Scalar>(out_value, grad, strip_row, all_values.from(stage * kKeys), 0);
      make_scores(p, s, first_row, n * kKeys, key_mask + stage * kKeys, score);
      if (p.seed) apply_dropout(keep, n * kKeys, out_value);
#pragma unroll
      for (int t = 0; t < kKeys / 8; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const SoftmaxRow& row = rows.softmax[e / 2];
          const float softmax = Fast::exp2(score[t][e] - row.shift) * row.normalise;
          rows.delta[e / 2] += score[t][e] == -INFINITY ? 0.0f : softmax * keep_scale * out_value[t][e];
        }
      }
    });
    rows.delta[0] = quad_sum(rows.delta[0]);
    rows.delta[1] = quad_sum(rows.delta[1]);
  }

  float query_sum[kDimFragments][4] = {}, context_sum[kDimFragments][4] = {}, d_lambda[2] = {};
  const auto load = [&](int n, int stage) {
    const int first_key = n * kKeys, count = keys - first_key;
    load_rows<Scalar, kKeys, Shape::kThreads>(p, s, p.key, first_key, count, all_keys.from(stage * kKeys));
    load_rows<Scalar, kKeys, Shape::kThreads>(p, s, p.context_key, first_key, count,
                                              all_context_keys.from(stage * kKeys));
    load_rows<Scalar, kKeys, Shape::kThreads>(p, s, p.value, first_key, count, all_values.from(stage * kKeys));
    load_key_gate_parts<kKeys>(p, s, first_key, key_gate_parts + stage * kKeys);
    load_key_mask<kKeys>(p, s, first_key, key_mask + stage * kKeys);
  };
  pipelined(tiles, load, [&](int n, int stage) {
    draw(n * kKeys);
    const int tile_key = stage * kKeys;
    Strip<kFragments> strip{};
    add_products<Scalar>(strip.score, query, strip_row, all_keys, tile_key);
    add_products<Scalar>(strip.context, context_query, strip_row, all_context_keys, tile_key);
    add_products<Scalar>(strip.out_value, grad, strip_row, all_values, tile_key);
    rows.quasi_biases = stored_biases(quasi_biases, strip_row);
    float column_sums[kFragments][2] = {};
    strip_gradients(p, s, first_row, n * kKeys, rows, key_mask + tile_key, key_gate_parts + tile_key, keep, strip,
                    d_lambda, column_sums);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t a[4];
      narrow_fragments<Scalar>(a, strip.score[2 * k], strip.score[2 * k + 1]);
      add_weighted<Scalar>(query_sum, a, all_keys.downwards(tile_key + 16 * k));
      narrow_fragments<Scalar>(a, strip.context[2 * k], strip.context[2 * k + 1]);
      add_weighted<Scalar>(context_sum, a, all_context_keys.downwards(tile_key + 16 * k));
    }
  });

  float logits[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = first_row + row_of(2 * half);
    const float sum = quad_sum(d_lambda[half]);
    if (i < s.queries && lane() % 4 == 0) {
      terms_at(g, s, i) = {rows.softmax[half].shift, rows.softmax[half].normalise, rows.lambda[half], rows.delta[half]};
      logits[half] = finish_row_gate(p, g, s, i, sum);
    }
    logits[half] = quad_sum(logits[half]);
  }
  if (first_row >= s.queries) return;
  finish_sums(p, s, logits, 0, 0, query_sum);
  finish_sums(p, s, logits, 1, 0, context_sum);
  write_strip<Scalar>(p, s, query, strip_row, query_sum, g.query, first_row);
  write_strip<Scalar>(p, s, query, strip_row, context_sum, g.context_query, first_row);
}

}  // namespace qacg::cuda::mma

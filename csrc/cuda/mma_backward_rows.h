// The backward's pass over queries with mma.sync: delta, gradients of query, context query and lambda. A block computes
// 64 queries of one head over tiles of keys. Five products; seven if the forward saved no O1 for delta.
#pragma once

#include "mma_gradient.h"

namespace qacg::cuda::mma {

template <typename Scalar, int kDim>
struct RowsShape {
  static constexpr int kThreads = 128, kRows = 64;
  // With 128 dims registers suffice for 16 keys, and two blocks fit a multiprocessor of sm_80.
  static constexpr int kKeys = kDim > 64 ? 16 : 32;
  using Keys = KeyTiles<Scalar, kDim, kKeys, kThreads>;
  static constexpr int64_t kShared = 3 * kRows * kDim * 2 + Keys::kShared;
};

template <typename Scalar, int kDim>
QACG_KERNEL((RowsShape<Scalar, kDim>::kThreads), 1)
backward_rows(QACG_PARAMETER Problem p, QACG_PARAMETER Gradients g) {
  using Shape = RowsShape<Scalar, kDim>;
  constexpr int kKeys = Shape::kKeys, kFragments = kKeys / 8, kDimFragments = kDim / 8;
  const Unit unit = unit_of(p, p.query_length, Shape::kRows);
  const Sequence& s = unit.sequence;
  if (unit.first >= s.queries) return;
  const int queries = s.queries - unit.first < Shape::kRows ? s.queries - unit.first : Shape::kRows;
  const int strip_row = warp() * kStrip, first_row = unit.first + strip_row;

  Arena arena;
  const auto query = arena.tile<kDim>(Shape::kRows), context_query = arena.tile<kDim>(Shape::kRows);
  const auto grad = arena.tile<kDim>(Shape::kRows);
  typename Shape::Keys tiles(arena);

  load_rows<Scalar, Shape::kRows, Shape::kThreads>(p, s, p.query, unit.first, queries, query);
  load_rows<Scalar, Shape::kRows, Shape::kThreads>(p, s, p.context_query, unit.first, queries, context_query);
  load_rows<Scalar, Shape::kRows, Shape::kThreads>(p, s, g.out, unit.first, queries, grad);
  const int keys = visible_stop(p, s, 0, seen_keys(p, s, unit.first + queries - 1)), count = (keys + kKeys - 1) / kKeys;
  StripRows rows{};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = first_row + row_of(2 * half);
    if (i >= s.queries) continue;
    const SoftmaxRow row = softmax_row(at(p.row_max, s, i), at(p.row_sum, s, i));
    rows.terms[half] = {row.shift, row.normalise, lambda_of_row(p, s, i), 0.0f};
    if (!p.softmax_out.data) continue;
    rows.terms[half].delta =
        partial_dot<4>(row_at<Scalar>(g.out, s, i), row_at<Scalar>(p.softmax_out, s, i), p.head_dim, lane() % 4);
  }
  KeepBits keep{};
  const auto draw = [&](int first_key) {
    if (p.seed && first_key % kDropoutBlock == 0) keep = draw_keep_bits(p, s, first_row, first_key);
  };

  // Eq. 10.
  if (!p.softmax_out.data) {
    const auto load = [&](int n, int buffer) { tiles.load(p, s, n, keys, buffer, /*with_context=*/false); };
    pipelined(count, load, [&](int n, int buffer) {
      draw(n * kKeys);
      const float keep_scale = p.seed ? p.keep_scale : 1.0f;
      float score[kFragments][4] = {}, out_value[kFragments][4] = {};
      add_products<Scalar>(score, query, strip_row, tiles.key, buffer * kKeys);
      add_products<Scalar>(out_value, grad, strip_row, tiles.value, buffer * kKeys);
      make_scores(p, s, first_row, n * kKeys, tiles.mask + buffer * kKeys, score);
      if (p.seed) apply_dropout(keep, n * kKeys, out_value);
      for_entries<kFragments>([&](int t, int e) {
        RowTerms& row = rows.terms[e / 2];
        const float softmax = Fast::exp2(score[t][e] - row.shift) * row.normalise;
        row.delta += score[t][e] == -INFINITY ? 0.0f : softmax * keep_scale * out_value[t][e];
      });
    });
  }
  for (RowTerms& row : rows.terms) row.delta = quad_sum(row.delta);

  float query_sum[kDimFragments][4] = {}, context_sum[kDimFragments][4] = {}, d_lambda[2] = {};
  const auto load = [&](int n, int buffer) { tiles.load(p, s, n, keys, buffer); };
  pipelined(count, load, [&](int n, int buffer) {
    draw(n * kKeys);
    const int tile_key = buffer * kKeys;
    Strip<kFragments> strip{};
    add_products<Scalar>(strip.score, query, strip_row, tiles.key, tile_key);
    add_products<Scalar>(strip.context, context_query, strip_row, tiles.context_key, tile_key);
    add_products<Scalar>(strip.out_value, grad, strip_row, tiles.value, tile_key);
    rows.quasi_biases = quasi_biases_of(p, s, first_row);
    float column_sums[kFragments][2] = {};
    strip_gradients(p, s, first_row, n * kKeys, rows, tiles.mask + tile_key, tiles.gate_parts + tile_key, keep, strip,
                    d_lambda, column_sums);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t a[4];
      narrow_fragments<Scalar>(a, strip.score[2 * k], strip.score[2 * k + 1]);
      add_weighted<Scalar>(query_sum, a, tiles.key.downwards(tile_key + 16 * k));
      narrow_fragments<Scalar>(a, strip.context[2 * k], strip.context[2 * k + 1]);
      add_weighted<Scalar>(context_sum, a, tiles.context_key.downwards(tile_key + 16 * k));
    }
  });

  float logits[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = first_row + row_of(2 * half);
    const float sum = quad_sum(d_lambda[half]);
    if (i < s.queries && lane() % 4 == 0) {
      terms_at(g, s, i) = rows.terms[half];
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

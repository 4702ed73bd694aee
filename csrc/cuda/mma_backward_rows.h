// The backward's pass over queries on tensor cores: delta, the gradients of query, context query and lambda. One block
// for 64 queries of one head, keys in tiles of 32; five products, seven where delta is not to be had from O1.
#pragma once

#include "mma_gradient.h"

namespace qacg::cuda::mma {

template <int kDim>
struct RowsShape {
  static constexpr int kThreads = 128, kRows = 64, kKeys = 32;
  static constexpr int64_t kShared = (3 * kRows + 2 * 3 * kKeys) * kDim * 2 + kRows * 4;
};

template <typename Scalar, int kDim>
QACG_KERNEL(RowsShape<kDim>::kThreads, 1) backward_rows(QACG_PARAMETER Problem p, QACG_PARAMETER Gradients g) {
  using Shape = RowsShape<kDim>;
  constexpr int kKeys = Shape::kKeys, kFragments = kKeys / 8, kDimFragments = kDim / 8;
  const Unit unit = unit_of(p, p.query_length, Shape::kRows);
  const Sequence& s = unit.sequence;
  if (unit.first >= s.queries) return;
  const int queries = s.queries - unit.first < Shape::kRows ? s.queries - unit.first : Shape::kRows;
  const int strip_row = warp() * kStrip, first_row = unit.first + strip_row;

  Arena arena(shared_memory());
  const Tile<Scalar, kDim> query{arena.take<Scalar>(Shape::kRows * kDim)};
  const Tile<Scalar, kDim> context_query{arena.take<Scalar>(Shape::kRows * kDim)};
  const Tile<Scalar, kDim> grad{arena.take<Scalar>(Shape::kRows * kDim)};
  Tile<Scalar, kDim> key[2], context_key[2], value[2];
  for (int stage = 0; stage < 2; ++stage) {
    key[stage].data = arena.take<Scalar>(kKeys * kDim);
    context_key[stage].data = arena.take<Scalar>(kKeys * kDim);
    value[stage].data = arena.take<Scalar>(kKeys * kDim);
  }
  float* deltas = arena.take<float>(Shape::kRows);

  load_rows<Shape::kRows, Shape::kThreads>(p, s, p.query, unit.first, queries, query);
  load_rows<Shape::kRows, Shape::kThreads>(p, s, p.context_query, unit.first, queries, context_query);
  load_rows<Shape::kRows, Shape::kThreads>(p, s, g.out, unit.first, queries, grad);
  const uint64_t seed = p.seed ? static_cast<uint64_t>(*p.seed) : 0;
  const int keys = seen_keys(p, s, unit.first + queries - 1), tiles = (keys + kKeys - 1) / kKeys;
  StripRows rows = read_rows(p, s, first_row);
  KeepBits keep{};
  const auto draw = [&](int first_key) {
    if (p.seed && first_key % kDropoutBlock == 0) keep = draw_keep_bits(p, s, seed, first_row, first_key);
  };

  // Eq. 10.
  if (p.softmax_out.data) {
    const int i = unit.first + thread_index() / 2;
    float delta = 0.0f;
    if (i < s.queries) {
      delta = half_dot(row_at<Scalar>(g.out, s, i), row_at<Scalar>(p.softmax_out, s, i), p.head_dim, thread_index() % 2);
    }
    delta += shuffle_xor(delta, 1);
    if (thread_index() % 2 == 0) deltas[thread_index() / 2] = delta;
    synchronise_block();
    rows.delta[0] = deltas[strip_row + row_of(0)];
    rows.delta[1] = deltas[strip_row + row_of(2)];
  } else {
    const auto load = [&](int n, int stage) {
      load_rows<kKeys, Shape::kThreads>(p, s, p.key, n * kKeys, keys - n * kKeys, key[stage]);
      load_rows<kKeys, Shape::kThreads>(p, s, p.value, n * kKeys, keys - n * kKeys, value[stage]);
    };
    pipelined(tiles, load, [&](int n, int stage) {
      draw(n * kKeys);
      float score[kFragments][4] = {}, out_value[kFragments][4] = {};
      add_products(score, query, strip_row, key[stage], 0);
      add_products(out_value, grad, strip_row, value[stage], 0);
      make_scores(p, s, first_row, n * kKeys, score);
      if (p.seed) drop_cells(keep, n * kKeys, out_value);
      const float keep_scale = p.seed ? p.keep_scale : 1.0f;
#pragma unroll
      for (int t = 0; t < kFragments; ++t) {
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
    load_rows<kKeys, Shape::kThreads>(p, s, p.key, first_key, count, key[stage]);
    load_rows<kKeys, Shape::kThreads>(p, s, p.context_key, first_key, count, context_key[stage]);
    load_rows<kKeys, Shape::kThreads>(p, s, p.value, first_key, count, value[stage]);
  };
  pipelined(tiles, load, [&](int n, int stage) {
    draw(n * kKeys);
    Strip<kFragments> strip = strip_products<kFragments>(query, context_query, grad, strip_row, key[stage],
                                                         context_key[stage], value[stage], 0);
    float column_sums[kFragments][2] = {};
    strip_gradients(p, s, first_row, n * kKeys, rows, keep, strip, d_lambda, column_sums);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t a[4];
      narrow_cells<Scalar>(a, strip.score[2 * k], strip.score[2 * k + 1]);
      add_weighted(query_sum, a, key[stage], 16 * k, 0);
      narrow_cells<Scalar>(a, strip.context[2 * k], strip.context[2 * k + 1]);
      add_weighted(context_sum, a, context_key[stage], 16 * k, 0);
    }
  });

  float logits[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = first_row + row_of(2 * half);
    const float sum = quad_sum(d_lambda[half]);
    if (i < s.queries && lane() % 4 == 0) {
      at(g.delta, s, i) = rows.delta[half];
      logits[half] = finish_row_gate(p, g, s, i, sum);
    }
    logits[half] = quad_sum(logits[half]);
  }
  if (first_row >= s.queries) return;
  finish_sums(p, s, logits, 0, 0, query_sum);
  finish_sums(p, s, logits, 1, 0, context_sum);
  write_strip(p, s, query, strip_row, query_sum, g.query, first_row);
  write_strip(p, s, query, strip_row, context_sum, g.context_query, first_row);
}

}  // namespace qacg::cuda::mma

// The forward with mma.sync for rows of any length, equations 1 to 8. A block computes 64 queries of one head, a warp a
// strip of 16, over tiles of keys with an online softmax. Four products: P V is rescaled at each tile, G V is not. Both
// are computed together, so that each value is read from shared memory once.
#pragma once

#include "mma_strip.h"

namespace qacg::cuda::mma {

template <typename Scalar, int kDim>
struct ForwardShape {
  static constexpr int kThreads = 128, kRows = 64;
  static constexpr int kKeys = kDim > 64 ? 32 : 64;
  using Keys = KeyTiles<Scalar, kDim, kKeys, kThreads>;
  // With 128 dims two blocks fill a multiprocessor of sm_80.
  static constexpr int64_t kShared = 2 * kRows * kDim * 2 + arena_bytes(kRows * 4) + Keys::kShared;
};

template <typename Scalar, int kDim>
QACG_KERNEL((ForwardShape<Scalar, kDim>::kThreads), 1)
forward(QACG_PARAMETER Problem p) {
  using Shape = ForwardShape<Scalar, kDim>;
  constexpr int kKeys = Shape::kKeys, kFragments = kKeys / 8, kDimFragments = kDim / 8;
  const Unit unit = unit_of(p, p.query_length, Shape::kRows);
  const Sequence& s = unit.sequence;
  if (unit.first >= s.queries) return;
  const int queries = s.queries - unit.first < Shape::kRows ? s.queries - unit.first : Shape::kRows;
  const int strip_row = warp() * kStrip, first_row = unit.first + strip_row;

  Arena arena;
  const auto query = arena.tile<kDim>(Shape::kRows), context_query = arena.tile<kDim>(Shape::kRows);
  // The gate vectors share memory with the first keys: a barrier separates the gates from the first copy of keys.
  float* vectors = Arena(arena).array<float>(4 * kDim);
  static_assert(4 * kDim * sizeof(float) <= 2 * kKeys * kDim * 2);
  typename Shape::Keys tiles(arena);
  float* lambdas = arena.array<float>(Shape::kRows);

  load_rows<Scalar, Shape::kRows, Shape::kThreads>(p, s, p.query, unit.first, queries, query);
  load_rows<Scalar, Shape::kRows, Shape::kThreads>(p, s, p.context_query, unit.first, queries, context_query);
  compute_lambdas<Scalar, kDim, Shape::kRows>(p, s, unit.first, vectors, lambdas);

  float softmax_sum[kDimFragments][4] = {}, quasi_sum[kDimFragments][4] = {};
  OnlineSoftmax rows[2];
  KeepBits keep{};
  const int keys = visible_stop(p, s, 0, seen_keys(p, s, unit.first + queries - 1));
  const auto load = [&](int n, int buffer) { tiles.load(p, s, n, keys, buffer); };
  const auto body = [&](int n, int buffer) {
    const int first_key = n * kKeys, tile_key = buffer * kKeys;
    if (p.seed && first_key % kDropoutBlock == 0) keep = draw_keep_bits(p, s, first_row, first_key);

    uint32_t softmax_weights[kKeys / 16][4], quasi_weights[kKeys / 16][4];
    float fragments[kFragments][4] = {};
    const auto make_weights = [&](uint32_t (&weights)[kKeys / 16][4]) {
      if (p.seed) apply_dropout(keep, first_key, fragments);
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) narrow_fragments<Scalar>(weights[k], fragments[2 * k], fragments[2 * k + 1]);
    };
    add_products<Scalar>(fragments, query, strip_row, tiles.key, tile_key);
    make_scores(p, s, first_row, first_key, tiles.mask + tile_key, fragments);
    const float rescale[2] = {rows[0].add_scores(fragments, 0), rows[1].add_scores(fragments, 1)};
    for_entries<kDimFragments>([&](int t, int e) { softmax_sum[t][e] *= rescale[e / 2]; });
    make_weights(softmax_weights);

    for_entries<kFragments>([&](int t, int e) { fragments[t][e] = 0.0f; });
    add_products<Scalar>(fragments, context_query, strip_row, tiles.context_key, tile_key);
    if (p.quasi_bias.data) {  // a branch, because the biases' registers would slow down calls without a bias
      make_scores(p, s, first_row, first_key, tiles.mask + tile_key, fragments, quasi_biases_of(p, s, first_row));
    } else {
      make_scores(p, s, first_row, first_key, tiles.mask + tile_key, fragments);
    }
    for_entries<kFragments>([&](int t, int e) {
      // With 64 dims special functions bound this loop; with 128 or 32 the polynomial gains nothing.
      fragments[t][e] = kDim == 64 ? sigmoid_by_polynomial(fragments[t][e]) : sigmoid<Fast>(fragments[t][e]);
    });
    if (p.column_gate) {  // around the loop, because a branch inside would be executed for each entry
      for_entries<kFragments>([&](int t, int e) {
        fragments[t][e] *= lambdas[opaque(strip_row) + row_of(e)] - tiles.gate_parts[tile_key + column_of(t, e)];
      });
    }
    make_weights(quasi_weights);
    const uint32_t values = tiles.value.downwards(tile_key);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      add_weighted<Scalar>(softmax_sum, softmax_weights[k], quasi_sum, quasi_weights[k],
                           values + 16 * k * Tile<kDim>::kPitch);
    }
  };
  pipelined((keys + kKeys - 1) / kKeys, load, body);

  finish_strip<Scalar>(p, s, first_row, rows, lambdas, softmax_sum, quasi_sum, query, strip_row);
}

}  // namespace qacg::cuda::mma

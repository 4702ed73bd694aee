// The forward with mma.sync for single-tile rows, of at most 128 keys, that save no branch output. All scores of a row
// are in registers, so the softmax needs no rescaling, and P + lambda G is multiplied with V once. Three products.
#pragma once

#include "mma_strip.h"

namespace qacg::cuda::mma {

constexpr int kShortKeys = 128;
// With 128 dims one block would fill a multiprocessor, and two blocks of the tiled forward are faster.
constexpr int kMostShortDims = 64;

template <typename Scalar, int kDim>
struct ShortShape {
  static_assert(kDim <= kMostShortDims);
  static constexpr int kThreads = 128, kRows = 64;
  using Keys = KeyTiles<Scalar, kDim, kShortKeys / 2, kThreads>;  // whose two buffers are one tile
  static constexpr int64_t kShared =
      2 * kRows * kDim * 2 + Keys::kShared + arena_bytes(4 * kDim * 4) + arena_bytes(kRows * 4);
};

template <typename Scalar, int kDim>
QACG_KERNEL((ShortShape<Scalar, kDim>::kThreads), 3)
forward_short(QACG_PARAMETER Problem p) {
  using Shape = ShortShape<Scalar, kDim>;
  constexpr int kFragments = kShortKeys / 8, kDimFragments = kDim / 8;
  const Unit unit = unit_of(p, p.query_length, Shape::kRows);
  const Sequence& s = unit.sequence;
  if (unit.first >= s.queries) return;
  const int queries = s.queries - unit.first < Shape::kRows ? s.queries - unit.first : Shape::kRows;
  const int strip_row = warp() * kStrip, first_row = unit.first + strip_row;
  const int keys = visible_stop(p, s, 0, seen_keys(p, s, unit.first + queries - 1));

  Arena arena;
  const auto query = arena.tile<kDim>(Shape::kRows), context_query = arena.tile<kDim>(Shape::kRows);
  const typename Shape::Keys tiles(arena);
  float* vectors = arena.array<float>(4 * kDim);
  float* lambdas = arena.array<float>(Shape::kRows);

  load_rows<Scalar, Shape::kRows, Shape::kThreads>(p, s, p.query, unit.first, queries, query);
  load_rows<Scalar, kShortKeys, Shape::kThreads>(p, s, p.key, 0, keys, tiles.key);
  commit_copies();
  load_rows<Scalar, Shape::kRows, Shape::kThreads>(p, s, p.context_query, unit.first, queries, context_query);
  load_rows<Scalar, kShortKeys, Shape::kThreads>(p, s, p.context_key, 0, keys, tiles.context_key);
  load_rows<Scalar, kShortKeys, Shape::kThreads>(p, s, p.value, 0, keys, tiles.value);
  commit_copies();
  load_key_terms<kShortKeys>(p, s, 0, tiles.mask, tiles.gate_parts);
  compute_lambdas<Scalar, kDim, Shape::kRows>(p, s, unit.first, vectors, lambdas);
  const float lambda[2] = {lambdas[strip_row + row_of(0)], lambdas[strip_row + row_of(2)]};
  const RowBiases quasi_biases = quasi_biases_of(p, s, first_row);
  KeepBits keep{};
  if (p.seed) keep = draw_keep_bits(p, s, first_row, 0);
  wait_for_copies<1>();
  synchronise_block();

  float softmax[kFragments][4] = {};
  add_products<Scalar>(softmax, query, strip_row, tiles.key, 0);
  make_scores(p, s, first_row, 0, tiles.mask, softmax);
  OnlineSoftmax rows[2];
  rows[0].add_scores(softmax, 0);
  rows[1].add_scores(softmax, 1);
  const float normalise[2] = {rows[0].finish(p, s, first_row + row_of(0)), rows[1].finish(p, s, first_row + row_of(2))};
  for_entries<kFragments>([&](int t, int e) { softmax[t][e] *= normalise[e / 2]; });
  wait_for_copies<0>();
  synchronise_block();
  float sums[kDimFragments][4] = {};
#pragma unroll
  for (int k = 0; k < kShortKeys / 16; ++k) {
    if (16 * k >= keys) break;
    float fragments[2][4] = {};
    add_products<Scalar>(fragments, context_query, strip_row, tiles.context_key, 16 * k);
    make_scores(p, s, first_row, 16 * k, tiles.mask + 16 * k, fragments, quasi_biases);
    for_entries<2>([&](int t, int e) {
      const float gate = lambda[e / 2] - tiles.gate_parts[16 * k + column_of(t, e)];
      fragments[t][e] = softmax[2 * k + t][e] + gate * p.quasi_scale * sigmoid<Fast>(fragments[t][e]);
    });
    if (p.seed) apply_dropout(keep, 16 * k, fragments);
    uint32_t a[4];
    narrow_fragments<Scalar>(a, fragments[0], fragments[1]);
    add_weighted<Scalar>(sums, a, tiles.value.downwards(16 * k));
  }
  if (p.seed) for_entries<kDimFragments>([&](int t, int e) { sums[t][e] *= p.keep_scale; });
  if (first_row >= s.queries) return;
  write_strip<Scalar>(p, s, query, strip_row, sums, p.out, first_row);
}

}  // namespace qacg::cuda::mma

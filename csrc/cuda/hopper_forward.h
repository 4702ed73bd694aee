// The forward with wgmma, equations 1 to 8. A block computes 128 queries of one head, each of its two warp groups 64 of
// them, over tiles of keys with an online softmax. The product for the context scores overlaps with the softmax, P V
// with the sigmoid, and G V with the product for the next tile's scores.
#pragma once

#include "gpus.h"
#include "hopper_tile.h"
#include "kernels.h"

namespace qacg::cuda::mma {

// The tiles of a stage.
enum { kKeyTile, kContextKeyTile, kValueTile, kTilesOfAStage };

template <int kDim>
struct HopperShape {
  static constexpr int kThreads = 256, kRows = 128;
  static constexpr int kKeys = kDim > 64 ? 64 : 128;
  // Of keys and values: one is read, one may still be read by G V of the previous tile, one receives copies.
  static constexpr int kStages = 3;
  static constexpr int64_t kShared = (2 * kRows + kStages * kTilesOfAStage * kKeys) * kDim * 2 +
                                     2 * arena_bytes(kRows * 4) + 2 * arena_bytes(kStages * kKeys * 4) +
                                     arena_bytes(4 * kDim * 4);
};

// Operations that the caller of make_scores_lazily() must still apply: score = factor * number + bias of the row. The
// factor is above 0.
struct Deferred {
  float factor;
  RowBiases biases;
};

// Turns products into scores as exponents of 2, -inf where hidden, except for the operations that it returns. If a
// strip sees all of these keys, the caller's next instructions include these operations without extra time.
template <int kTiles>
QACG_DEVICE Deferred make_scores_lazily(const Problem& p, const Sequence& s, int first_row, int first_key,
                                        const float* key_mask, float (&c)[kTiles][4], const RowBiases& biases = {}) {
  if (p.scale > 0.0f && sees_all<8 * kTiles>(p, s, first_row, first_key, key_mask)) return {p.scale * kLog2e, biases};
  make_scores(p, s, first_row, first_key, key_mask, c, biases);
  return {1.0f, {}};
}

template <typename Scalar, int kTiles>
QACG_DEVICE void narrow_weights(uint32_t (&weights)[kTiles / 2][4], const float (&fragments)[kTiles][4]) {
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) narrow_fragments<Scalar>(weights[k], fragments[2 * k], fragments[2 * k + 1]);
}

// Writes a strip of sums to rows of an output. The tile's rows that belong to this warp are the buffer.
template <typename Scalar, int kTiles, int kDim, int kRows>
QACG_DEVICE void write_strip(const Problem& p, const Sequence& s, const Panels<kDim, kRows>& tile, int tile_row,
                             const float (&sums)[kTiles][4], const Tensor4& to, int first_row) {
  synchronise_warp();
#pragma unroll
  for (int n = 0; n < kDim / 64; ++n) {
    store_fragments<Scalar, 8>(tile.panel(n), tile_row, 0, sums + 8 * n);
  }
  synchronise_warp();
  const int left = s.queries - first_row;
  write_rows<Scalar, kWarp>(p, s, tile, tile_row, left < kStrip ? left : kStrip, to, first_row, lane());
}

template <typename Scalar, int kDim>
QACG_KERNEL(HopperShape<kDim>::kThreads, 1)
hopper_forward(QACG_PARAMETER Problem p) {
#if defined(QACG_HAS_WGMMA)
  using Shape = HopperShape<kDim>;
  constexpr int kKeys = Shape::kKeys, kFragments = kKeys / 8, kDimFragments = kDim / 8;
  const Unit unit = unit_of(p, p.query_length, Shape::kRows);
  const Sequence& s = unit.sequence;
  if (unit.first >= s.queries) return;
  const int queries = s.queries - unit.first < Shape::kRows ? s.queries - unit.first : Shape::kRows;
  const int strip_row = warp() * kStrip, first_row = unit.first + strip_row, group_row = warp() / 4 * 64;

  Arena arena;
  const Panels<kDim, Shape::kRows> query{arena.tile<kDim>(Shape::kRows).address};
  const Panels<kDim, Shape::kRows> context_query{arena.tile<kDim>(Shape::kRows).address};
  const uint32_t stages = arena.tile<kDim>(Shape::kStages * kTilesOfAStage * kKeys).address;
  float* lambdas = arena.array<float>(Shape::kRows);
  float* quasi_biases = arena.array<float>(Shape::kRows);
  float* key_gate_parts = arena.array<float>(Shape::kStages * kKeys);
  float* key_mask = arena.array<float>(Shape::kStages * kKeys);
  float* vectors = arena.array<float>(4 * kDim);  // shares no memory with tiles: the first keys are copied meanwhile
  const auto tile_of = [&](int stage, int which) {
    return Panels<kDim, kKeys>{stages + (kTilesOfAStage * stage + which) * kKeys * kDim * 2};
  };

  load_rows<Scalar, Shape::kRows, Shape::kThreads>(p, s, p.query, unit.first, queries, query);
  load_rows<Scalar, Shape::kRows, Shape::kThreads>(p, s, p.context_query, unit.first, queries, context_query);

  const int keys = seen_keys(p, s, unit.first + queries - 1);
  const auto load = [&](int first_key, int stage) {
    const int count = keys - first_key;
    load_rows<Scalar, kKeys, Shape::kThreads>(p, s, p.key, first_key, count, tile_of(stage, kKeyTile));
    load_rows<Scalar, kKeys, Shape::kThreads>(p, s, p.context_key, first_key, count, tile_of(stage, kContextKeyTile));
    load_rows<Scalar, kKeys, Shape::kThreads>(p, s, p.value, first_key, count, tile_of(stage, kValueTile));
    if (p.column_gate) load_key_gate_parts<kKeys>(p, s, first_key, key_gate_parts + stage * kKeys);
    load_key_mask<kKeys>(p, s, first_key, key_mask + stage * kKeys);
    commit_copies();
  };

  load(0, 0);  // under way while the gates are computed
  store_quasi_biases<Shape::kRows>(p, s, unit.first, quasi_biases);
  compute_lambdas<Scalar, kDim, Shape::kRows>(p, s, unit.first, vectors, lambdas);

  float softmax_sum[kDimFragments][4] = {}, quasi_sum[kDimFragments][4] = {};
  OnlineSoftmax rows[2];
  float scores[kFragments][4], context_scores[kFragments][4];
  uint32_t softmax_weights[kFragments / 2][4], quasi_weights[kFragments / 2][4];
  KeepBits keep{};
  // ptxas makes the code wait after each product (C7513, C7515) in two cases: if code paths join in which different
  // instructions write the accumulators of unfinished products, or if operands or accumulators of another product are
  // written before these products finish. So the loop is followed by a wait, and the code after a softmax or a sigmoid
  // waits for all products.
  int first_key = 0, stage = 0;
  if (keys > 0) {
#pragma unroll 1
    do {
      wait_for_copies<0>();
      show_to_products();
      synchronise_block();
      fence_registers();
      begin_scores<Scalar>(scores, query, group_row, tile_of(stage, kKeyTile));
      const int next_key = first_key + kKeys, next_stage = stage + 1 < Shape::kStages ? stage + 1 : 0;
      if (next_key < keys) load(next_key, next_stage);
      if (p.seed && first_key % kDropoutBlock == 0) keep = draw_keep_bits(p, s, first_row, first_key);
      // Waits for G V of the previous tile, whose weights occupy the registers of the context scores.
      wait_for_products<1>();
      fence_registers();
      begin_scores<Scalar>(context_scores, context_query, group_row, tile_of(stage, kContextKeyTile));

      wait_for_products<1>(scores);
      const float factor = make_scores_lazily(p, s, first_row, first_key, key_mask + stage * kKeys, scores).factor;
      float rescale[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) rescale[half] = add_scores(rows[half], scores, half, factor);
      if (p.seed) apply_dropout(keep, first_key, scores);
      wait_for_products<0>(context_scores);
#pragma unroll
      for (int t = 0; t < kDimFragments; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) softmax_sum[t][e] *= rescale[e / 2];
      }
      narrow_weights<Scalar>(softmax_weights, scores);
      fence_registers(softmax_sum, softmax_weights);
      begin_weighted<Scalar>(softmax_sum, softmax_weights, tile_of(stage, kValueTile));

      const RowBiases biases = stored_biases(quasi_biases, strip_row);
      const Deferred deferred =
          make_scores_lazily(p, s, first_row, first_key, key_mask + stage * kKeys, context_scores, biases);
#pragma unroll
      for (int t = 0; t < kFragments; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          context_scores[t][e] =
              sigmoid_by_polynomial(context_scores[t][e] * deferred.factor + deferred.biases.value[e / 2]);
        }
      }
      if (p.column_gate) {
#pragma unroll
        for (int t = 0; t < kFragments; ++t) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float key_gate = key_gate_parts[stage * kKeys + column_of(t, e)];
            context_scores[t][e] *= lambdas[opaque(strip_row) + row_of(e)] - key_gate;
          }
        }
      }
      if (p.seed) apply_dropout(keep, first_key, context_scores);
      wait_for_products<0>(softmax_sum);
      narrow_weights<Scalar>(quasi_weights, context_scores);
      fence_registers(quasi_sum, quasi_weights);
      begin_weighted<Scalar>(quasi_sum, quasi_weights, tile_of(stage, kValueTile));
      first_key = next_key;
      stage = next_stage;
    } while (first_key < keys);
    wait_for_products<0>(quasi_sum);
  }
  // If there are no keys, nothing has waited for the copies of queries, whose tile the outputs now use as a buffer.
  wait_for_copies<0>();
  synchronise_block();

  finish_strip<Scalar>(p, s, first_row, rows, lambdas, softmax_sum, quasi_sum, query, strip_row);
#endif
}

// Shared memory per block on a GPU with these instructions.
constexpr int64_t kSharedOfSm90 = 227 * 1024;

template <typename Scalar, int kDim>
const char* run_hopper_forward_of(const Problem& p, void* stream) {
  using Shape = HopperShape<kDim>;
  static_assert(Shape::kShared <= kSharedOfSm90);
  return launch(hopper_forward<Scalar, kDim>, unit_count(p, p.query_length, Shape::kRows), Shape::kThreads,
                Shape::kShared, stream, p);
}

// Launches the forward, with the head size padded to 64 or 128.
template <typename Scalar>
const char* run_hopper_forward(const Problem& p, void* stream, bool* launched) {
  const char* error = find_wgmma(launched);
  if (error || !*launched) return error;
  return p.head_dim <= 64 ? run_hopper_forward_of<Scalar, 64>(p, stream)
                          : run_hopper_forward_of<Scalar, 128>(p, stream);
}

}  // namespace qacg::cuda::mma

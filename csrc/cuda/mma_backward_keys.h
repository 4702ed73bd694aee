// The backward's pass over keys with mma.sync: gradients of key, context key and value. A block computes 64 keys of one
// head over tiles of queries, in two phases. First each warp computes a strip of A, dT and dTc into shared memory; then
// each warp accumulates the gradients of 16 keys for half of the dims. Six products.
#pragma once

#include "mma_gradient.h"

namespace qacg::cuda::mma {

template <int kDim>
struct KeysShape {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp, kKeys = 64;
  static constexpr int kRows = kDim > 64 ? 32 : 64;  // of a tile of queries
  static constexpr int kStrips = kRows / kStrip, kKeyGroups = kWarps / kStrips;  // of a tile's entries
  static constexpr int64_t kShared = 3 * (kKeys + kRows) * kDim * 2 + 3 * kRows * kKeys * 2 + arena_bytes(kRows * 16) +
                                     arena_bytes(kRows * kDropoutGroups) + arena_bytes(kStrips * kKeys * 4) +
                                     2 * arena_bytes(kKeys * 4);
};

template <typename Scalar, int kDim>
QACG_KERNEL(KeysShape<kDim>::kThreads, 1)
backward_keys(QACG_PARAMETER Problem p, QACG_PARAMETER Gradients g) {
  using Shape = KeysShape<kDim>;
  constexpr int kKeys = Shape::kKeys, kRows = Shape::kRows, kThreads = Shape::kThreads;
  constexpr int kGroupKeys = kKeys / Shape::kKeyGroups, kFragments = kGroupKeys / 8;
  constexpr int kHalfFragments = kDim / 2 / 8;
  const Unit unit = unit_of(p, p.key_length, kKeys);
  const Sequence& s = unit.sequence;
  if (unit.first >= s.all_keys) return;
  const int keys = s.keys - unit.first < kKeys ? s.keys - unit.first : kKeys;

  Arena arena;
  const auto key = arena.tile<kDim>(kKeys), context_key = arena.tile<kDim>(kKeys), value = arena.tile<kDim>(kKeys);
  const auto query = arena.tile<kDim>(kRows), context_query = arena.tile<kDim>(kRows), grad = arena.tile<kDim>(kRows);
  const auto attention = arena.tile<kKeys>(kRows), d_score = arena.tile<kKeys>(kRows);
  const auto d_context = arena.tile<kKeys>(kRows);
  RowTerms* all_terms = arena.array<RowTerms>(kRows);
  uint8_t* keep_bytes = arena.array<uint8_t>(kRows * kDropoutGroups);
  float* column_totals = arena.array<float>(Shape::kStrips * kKeys);  // only one warp writes each total
  float* key_mask = arena.array<float>(kKeys);
  float* key_logits = key_mask;  // written after the loop, which is the last to read the mask
  float* key_gate_parts = arena.array<float>(kKeys);

  load_rows<Scalar, kKeys, kThreads>(p, s, p.key, unit.first, keys, key);
  load_rows<Scalar, kKeys, kThreads>(p, s, p.context_key, unit.first, keys, context_key);
  load_rows<Scalar, kKeys, kThreads>(p, s, p.value, unit.first, keys, value);
  load_key_terms<kKeys>(p, s, unit.first, key_mask, key_gate_parts);
  for (int n = thread_index(); n < Shape::kStrips * kKeys; n += kThreads) column_totals[n] = 0.0f;

  // Phase one: a strip of queries and a group of keys. Phase two: 16 keys and half of the dims.
  const int strip_row = warp() % Shape::kStrips * kStrip, group_key = warp() / Shape::kStrips * kGroupKeys;
  const int owned_key = warp() % 4 * 16, owned_chunk = warp() / 4 * (kDim / 2 / kChunk);
  float value_sum[kHalfFragments][4] = {}, key_sum[kHalfFragments][4] = {}, context_sum[kHalfFragments][4] = {};

  // Causality hides these keys from the first queries; no query sees keys beyond the length.
  const int first_visible = p.is_causal ? unit.first / kRows * kRows : 0;
  const int end = visible_stop(p, s, unit.first, unit.first + keys) > unit.first ? s.queries : 0;
  // Each of a tile's copies starts once all warps have finished reading the previous tile: queries and context queries
  // within phase two, gradients and row terms at the start of phase one. The code waits for each copy separately.
  const auto start_copy = [&](int first_query, const Tensor4& from, const Tile<kDim>& to) {
    synchronise_block();
    if (first_query < end) load_rows<Scalar, kRows, kThreads>(p, s, from, first_query, s.queries - first_query, to);
  };
  const auto start_queries = [&](int first_query) {
    start_copy(first_query, p.query, query);
    commit_copies();
  };
  const auto start_context_queries = [&](int first_query) {
    start_copy(first_query, p.context_query, context_query);
    commit_copies();
  };
  start_queries(first_visible);
  start_context_queries(first_visible);
#pragma unroll 1
  for (int first_query = first_visible; first_query < end; first_query += kRows) {
    wait_for_copies<1>();
    start_copy(first_query, g.out, grad);
    if (thread_index() < kRows) {
      const bool inside = first_query + thread_index() < s.queries;
      copy_async(shared_address(all_terms + thread_index()),
                 &terms_at(g, s, first_query + (inside ? thread_index() : 0)), inside);
    }
    commit_copies();

    const int first_row = first_query + strip_row;
    StripRows rows;
    rows.quasi_biases = quasi_biases_of(p, s, first_row);  // here, so that the products hide the latency
    KeepBits keep{};
    if (p.seed) {
      const uint64_t seed = static_cast<uint64_t>(*p.seed);
#pragma unroll 1
      for (int c = thread_index(); c < kRows * kDropoutGroups; c += kThreads) {
        const int residue = c % kDropoutGroups;
        keep_bytes[c] = static_cast<uint8_t>(kept_keys(
            seed, p.drop_threshold, sequence_head(p, s), static_cast<uint32_t>(first_query + c / kDropoutGroups),
            counter_group(unit.first / kDropoutBlock * kDropoutBlock + residue)));
      }
      synchronise_block();
      for_entries<2>([&](int t, int e) {
        const uint32_t kept = keep_bytes[(strip_row + row_of(e)) * kDropoutGroups + column_of(t, e)];
        keep.row[e / 2] |= kept << (8 * (2 * t + e % 2));
      });
    }
    Strip<kFragments> strip{};
    add_products<Scalar>(strip.score, query, strip_row, key, group_key);
    wait_for_copies<1>();
    synchronise_block();
    add_products<Scalar>(strip.context, context_query, strip_row, context_key, group_key);
    wait_for_copies<0>();
    synchronise_block();
    add_products<Scalar>(strip.out_value, grad, strip_row, value, group_key);
    rows.terms[0] = all_terms[strip_row + row_of(0)];
    rows.terms[1] = all_terms[strip_row + row_of(2)];
    float row_sums[2] = {}, column_sums[kFragments][2] = {};
    strip_gradients(p, s, first_row, unit.first + group_key, rows, key_mask + group_key, key_gate_parts + group_key,
                    keep, strip, row_sums, column_sums);
    store_strip<Scalar>(attention, strip_row, group_key / kChunk, strip.out_value);
    store_strip<Scalar>(d_score, strip_row, group_key / kChunk, strip.score);
    store_strip<Scalar>(d_context, strip_row, group_key / kChunk, strip.context);
    if (p.column_gate) {
#pragma unroll
      for (int t = 0; t < kFragments; ++t) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float sum = column_sums[t][e];
          for (int lanes = 4; lanes < kWarp; lanes *= 2) sum += shuffle_xor(sum, lanes);
          if (lane() < 4) column_totals[strip_row / kStrip * kKeys + group_key + column_of(t, e)] += sum;
        }
      }
    }
    synchronise_block();
    const uint32_t own_dims = owned_chunk * kChunkBytes, own_keys = owned_key / kChunk * kChunkBytes;
    const auto accumulate = [&](auto& sums, const auto& weights, const auto& tile) {
#pragma unroll
      for (int row = 0; row < kRows; row += 16) {
        uint32_t a[4];
        load_matrices_transposed(a, weights.along(row) ^ own_keys);
        add_weighted<Scalar>(sums, a, tile.downwards(row) ^ own_dims);
      }
    };
    accumulate(key_sum, d_score, query);
    start_queries(first_query + kRows);
    accumulate(context_sum, d_context, context_query);
    start_context_queries(first_query + kRows);
    accumulate(value_sum, attention, grad);
  }
  wait_for_copies<0>();  // if there are no tiles, no other wait has covered the copies of keys

  if (thread_index() < kKeys) {
    const int j = unit.first + thread_index();
    float d_lambda = 0.0f;
    for (int strip = 0; strip < Shape::kStrips; ++strip) d_lambda += column_totals[strip * kKeys + thread_index()];
    key_logits[thread_index()] = j < s.all_keys ? finish_key_gate(p, g, s, j, d_lambda) : 0.0f;
  }
  synchronise_block();
  const float logits[2] = {key_logits[owned_key + row_of(0)], key_logits[owned_key + row_of(2)]};
  finish_sums(p, s, logits, 2, owned_chunk * kChunk, key_sum);
  finish_sums(p, s, logits, 3, owned_chunk * kChunk, context_sum);
  store_strip<Scalar>(value, owned_key, owned_chunk, value_sum);
  store_strip<Scalar>(key, owned_key, owned_chunk, key_sum);
  store_strip<Scalar>(context_key, owned_key, owned_chunk, context_sum);
  synchronise_block();
  const int count = s.all_keys - unit.first < kKeys ? s.all_keys - unit.first : kKeys;
  write_rows<Scalar, kThreads>(p, s, value, 0, count, g.value, unit.first, thread_index());
  write_rows<Scalar, kThreads>(p, s, key, 0, count, g.key, unit.first, thread_index());
  write_rows<Scalar, kThreads>(p, s, context_key, 0, count, g.context_key, unit.first, thread_index());
}

}  // namespace qacg::cuda::mma

// The forward of the plain path, equations 1 to 8: one block for 32 queries of one head, keys in tiles of 32 with a
// running maximum.
#pragma once

#include "online_softmax.h"
#include "plain_tile.h"

namespace qacg::cuda::plain {

constexpr int64_t kForwardShared = 4 * kTileFloats * sizeof(float);

QACG_DEVICE float warp_max(float x) {
  for (int lanes = kWarp / 2; lanes; lanes /= 2) x = fmaxf(x, shuffle_xor(x, lanes));
  return x;
}

QACG_KERNEL(kThreads, 1) forward(QACG_PARAMETER Problem p) {
  const Unit unit = unit_of(p, p.query_length, kTile);
  const Sequence& s = unit.sequence;
  if (unit.first >= s.queries) return;
  const int queries = s.queries - unit.first < kTile ? s.queries - unit.first : kTile;
  const int first_row = unit.first + first_owned();
  float* softmax_weights = reinterpret_cast<float*>(shared_memory());
  float* quasi_weights = softmax_weights + kTileFloats;
  float* own_tile = quasi_weights + kTileFloats;
  float* other_tile = own_tile + kTileFloats;
  const uint64_t seed = p.seed ? static_cast<uint64_t>(*p.seed) : 0;

  float lambda[kOwned], quasi_bias[kOwned];
  OnlineSoftmax rows[kOwned];
#pragma unroll
  for (int r = 0; r < kOwned; ++r) {
    lambda[r] = first_row + r < s.queries ? computed_lambda(p, s, first_row + r) : 0.0f;
    quasi_bias[r] = quasi_bias_of(p, s, first_row + r);
  }
  Sums softmax_sum{}, gated_sum{};

  const int keys = seen_keys(p, s, unit.first + queries - 1);
  for (int first_key = 0; first_key < keys; first_key += kTile) {
    const int count = keys - first_key < kTile ? keys - first_key : kTile;
    const Products scores =
        products(p, s, {p.query, unit.first, queries}, {p.key, first_key, count}, own_tile, other_tile);
    const Products context_scores =
        products(p, s, {p.context_query, unit.first, queries}, {p.context_key, first_key, count}, own_tile, other_tile);
    const int j = first_key + lane();
    const float key_gate = key_gate_part(p, s, j);
#pragma unroll
    for (int r = 0; r < kOwned; ++r) {
      const Scores t = scores_of(p, s, first_row + r, j, scores.value[r], context_scores.value[r], quasi_bias[r]);
      const float rescale = rows[r].raise_maximum<Accurate>(warp_max(t.softmax));
      const float e = t.seen ? exp2f(t.softmax - rows[r].shift()) : 0.0f;
      rows[r].sum += warp_sum(e);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) softmax_sum.value[r][c] *= rescale;
      const float keep = keep_at(p, s, seed, first_row + r, j);
      const float quasi = t.seen && keep > 0.0f ? keep * p.quasi_scale * sigmoid<Accurate>(t.context) : 0.0f;
      const int index = (first_owned() + r) * kStride + lane();
      softmax_weights[index] = keep > 0.0f ? keep * e : 0.0f;
      quasi_weights[index] = (lambda[r] - key_gate) * quasi;
    }
    const Operand values{p.value, first_key, count};
    add_weighted(p, s, values, softmax_weights, other_tile, softmax_sum);
    add_weighted(p, s, values, quasi_weights, other_tile, gated_sum);
  }

#pragma unroll
  for (int r = 0; r < kOwned; ++r) {
    const int i = first_row + r;
    if (i >= s.queries) break;
    if (lane() == 0) rows[r].store(p, s, i);
    const float normalise = rows[r].normalise();
    const auto softmax_out = [&](int c) { return softmax_sum.value[r][c] * normalise; };
    write_row(p, s, p.out, i, [&](int c, int) { return softmax_out(c) + gated_sum.value[r][c]; });
    if (p.softmax_out.data) write_row(p, s, p.softmax_out, i, [&](int c, int) { return softmax_out(c); });
  }
}

}  // namespace qacg::cuda::plain

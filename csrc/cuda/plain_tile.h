// Tiles of the plain path, for every element type and head size: all arithmetic in float32, no tensor cores.
//
// A tile is 32 x 32 entries. Each of 8 warps owns four rows of it: four queries, or four keys in the pass over keys.
// Each of the warp's lanes computes one of the other side's 32 rows for the scores, and one of 32 dims for the weighted
// sums.
#pragma once

#include "gates.h"

namespace qacg::cuda::plain {

constexpr int kTile = 32;
constexpr int kThreads = 256;
constexpr int kOwned = 4;  // rows of a tile that a warp owns
constexpr int kStride = kTile + 1;  // of a tile in shared memory: reading down a column meets every bank
constexpr int kTileFloats = kTile * kStride;
constexpr int kLargestHead = 256;
constexpr int kChunks = kLargestHead / kTile;  // of dims

QACG_DEVICE int lane() { return thread_index() % kWarp; }
QACG_DEVICE int first_owned() { return thread_index() / kWarp * kOwned; }

// One side of a tile: `count` rows of a tensor from row `first` of the sequence.
struct Operand {
  const Tensor4& tensor;
  int first, count;
};

// Loads 32 rows x 32 dims into shared memory as float32, 0 where there are fewer.
QACG_DEVICE void load_chunk(const Problem& p, const Sequence& s, const Operand& x, int first_dim, float* tile) {
  const int dim = first_dim + lane();
  for (int r = thread_index() / kWarp; r < kTile; r += kThreads / kWarp) {
    const bool inside = r < x.count && dim < p.head_dim;
    tile[r * kStride + lane()] =
        inside ? read(p.element, x.tensor.data, offset_of(x.tensor, s, x.first + r) + dim * x.tensor.dim) : 0.0f;
  }
}

// Products of the warp's own rows with the lane's row of the other side.
struct Products {
  float value[kOwned];
};

QACG_DEVICE Products products(const Problem& p, const Sequence& s, const Operand& own, const Operand& other,
                              float* own_tile, float* other_tile) {
  Products total{};
  for (int dim = 0; dim < p.head_dim; dim += kTile) {
    synchronise_block();
    load_chunk(p, s, own, dim, own_tile);
    load_chunk(p, s, other, dim, other_tile);
    synchronise_block();
    const float* rows = own_tile + first_owned() * kStride;
    for (int d = 0; d < kTile; ++d) {
      const float x = other_tile[lane() * kStride + d];
      for (int r = 0; r < kOwned; ++r) total.value[r] += rows[r * kStride + d] * x;
    }
  }
  return total;
}

// Sums of the warp's own rows: value[r][c] is dim 32 c + lane of row r.
struct Sums {
  float value[kOwned][kChunks];
};

// Adds weights times the other rows to `sums`. The weights (own rows x other rows) are in shared memory, where each
// warp has written those of its own rows.
QACG_DEVICE void add_weighted(const Problem& p, const Sequence& s, const Operand& other, const float* weights,
                              float* other_tile, Sums& sums) {
  const float* rows = weights + first_owned() * kStride;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (c * kTile >= p.head_dim) break;
    synchronise_block();
    load_chunk(p, s, other, c * kTile, other_tile);
    synchronise_block();
    // Tile by tile, so that a long row's rounding errors are those of two short sums.
    float part[kOwned] = {};
    for (int j = 0; j < kTile; ++j) {
      const float x = other_tile[j * kStride + lane()];
      for (int r = 0; r < kOwned; ++r) part[r] += rows[r * kStride + j] * x;
    }
#pragma unroll
    for (int r = 0; r < kOwned; ++r) sums.value[r][c] += part[r];
  }
}

// Writes value(c, d) to every dim d = 32 c + lane of row i of the sequence.
template <typename Value>
QACG_DEVICE void write_row(const Problem& p, const Sequence& s, const Tensor4& t, int i, const Value& value) {
  const int64_t offset = offset_of(t, s, i);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int d = c * kTile + lane();
    if (d < p.head_dim) write(p.element, t.data, offset + d * t.dim, value(c, d));
  }
}

// Z of eq. 7.
QACG_DEVICE float keep_at(const Problem& p, const Sequence& s, uint64_t seed, int i, int j) {
  if (!p.seed) return 1.0f;
  return keeps_cell(seed, p.drop_threshold, sequence_head(p, s), static_cast<uint32_t>(i), j) ? p.keep_scale : 0.0f;
}

}  // namespace qacg::cuda::plain

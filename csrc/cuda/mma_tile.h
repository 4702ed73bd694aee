// Tiles of 16-bit rows in shared memory, and products of them by warps.
//
// A strip is 16 rows of a tile, the share of one warp. Fragment c[t] has 16 x 8 entries of the strip: a thread has
// c[t][0] and c[t][1] in row lane / 4, columns 8 t + 2 (lane % 4) and the next, and c[t][2], c[t][3] eight rows below.
#pragma once

#include "mma.h"
#include "sequence.h"

namespace qacg::cuda::mma {

constexpr int kStrip = 16;
constexpr int kChunk = 8;  // elements in the 16 bytes that one thread moves
constexpr int kChunkBytes = 16;
constexpr int kTileAlignment = 256;  // of a tile in shared memory: bytes of the longest row

QACG_DEVICE int lane() { return thread_index() % kWarp; }
QACG_DEVICE int warp() { return thread_index() / kWarp; }

// A tile of rows with kDim elements, described by the address of its first row. Chunks are permuted within 128 bytes,
// differently in eight consecutive rows, so that the eight rows that ldmatrix reads at a time lie in different banks.
// Tiles are aligned and permutations are exclusive ors. So `address ^ chunk_bytes` moves along a row by an even number
// of chunks from an even chunk on, and `address + n * kPitch` moves down by n rows, a multiple of 8.
template <int kDim>
struct Tile {
  static_assert(kDim == 32 || kDim == 64 || kDim == 128);
  static constexpr int kPitch = 2 * kDim;  // bytes
  static constexpr int kChunks = kDim / kChunk;
  uint32_t address;

  QACG_DEVICE uint32_t at(int row, int chunk) const {
    const int permuted = kDim == 32 ? chunk ^ (row / 2 % 4) : chunk ^ (row % 8);
    return address + row * kPitch + permuted * kChunkBytes;
  }

  // The tile from `row` on, a multiple of 8.
  QACG_DEVICE Tile from(int row) const { return {address + row * kPitch}; }

  // The address of the 16 bytes that a lane passes to ldmatrix, which loads 16 rows x 16 columns as four 8 x 8
  // matrices. downwards() orders the matrices down the rows first: a left operand of a product, or transposed a right
  // one. along() orders them along the rows first: a right operand, or transposed a left one.
  QACG_DEVICE uint32_t downwards(int row) const { return at(row + lane() % 16, lane() / 16); }
  QACG_DEVICE uint32_t along(int row) const { return at(row + lane() % 8 + lane() / 16 * 8, lane() / 8 % 2); }
};

// Calls visit(t, e) for this thread's elements of kTiles fragments.
template <int kTiles, typename Visit>
QACG_DEVICE void for_entries(const Visit& visit) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) visit(t, e);
  }
}

// Starts copies of `count` rows of a tensor from row `first` of the sequence; the tile's other rows become 0, and so do
// dims at and beyond head_dim.
template <typename Scalar, int kRows, int kThreads, int kDim>
QACG_DEVICE void load_rows(const Problem& p, const Sequence& s, const Tensor4& t, int first, int count,
                           const Tile<kDim>& tile) {
  constexpr int kChunks = Tile<kDim>::kChunks, kStep = kThreads / kChunks;  // rows that the threads copy at a time
  static_assert(kStep % 8 == 0);
  const int thread = opaque(thread_index()), row = thread / kChunks, chunk = thread % kChunks;
  const Scalar* base = static_cast<const Scalar*>(t.data);
  const Scalar* from = base + offset_of(t, s, first + row) + chunk * kChunk;
  const int64_t step = opaque(kStep) * t.row;
  const uint32_t to = tile.at(row, chunk);
  if (chunk * kChunk >= p.head_dim) count = 0;
#pragma unroll
  for (int n = 0; n < kRows; n += kStep) {
    const bool inside = row + n < count;
    if (kRows % kStep == 0 || row + n < kRows) {
      copy_async(to + n * Tile<kDim>::kPitch, inside ? from : base, inside);
      from += step;
    }
  }
}

// c += the dot products, over dims, of 16 rows of `left` from left_row with 8 kTiles rows of `right` from right_row.
template <typename Scalar, int kTiles, int kDim>
QACG_DEVICE void add_products(float (&c)[kTiles][4], const Tile<kDim>& left, int left_row, const Tile<kDim>& right,
                              int right_row) {
  const uint32_t from_left = opaque(left.downwards(left_row)), from_right = opaque(right.along(right_row));
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    uint32_t a[4], b[4];
    load_matrices(a, from_left ^ (2 * k * kChunkBytes));
#pragma unroll
    for (int t = 0; t < kTiles / 2; ++t) {
      load_matrices(b, (from_right ^ (2 * k * kChunkBytes)) + 16 * t * Tile<kDim>::kPitch);
      multiply_add(c[2 * t], a, b[0], b[1], Scalar{});
      multiply_add(c[2 * t + 1], a, b[2], b[3], Scalar{});
    }
  }
}

// sums += a (16 x 16) times 16 rows of a tile, for 8 kTiles dims; `rows` is downwards() of the first row and dim.
template <typename Scalar, int kTiles>
QACG_DEVICE void add_weighted(float (&sums)[kTiles][4], const uint32_t (&a)[4], uint32_t rows) {
#pragma unroll
  for (int t = 0; t < kTiles / 2; ++t) {
    uint32_t b[4];
    load_matrices_transposed(b, rows ^ (2 * t * kChunkBytes));
    multiply_add(sums[2 * t], a, b[0], b[1], Scalar{});
    multiply_add(sums[2 * t + 1], a, b[2], b[3], Scalar{});
  }
}

// sums += a times the rows, and other_sums += other times the same rows, for 8 kTiles dims. Reads each row once for
// both products, because shared memory bounds them.
template <typename Scalar, int kTiles>
QACG_DEVICE void add_weighted(float (&sums)[kTiles][4], const uint32_t (&a)[4], float (&other_sums)[kTiles][4],
                              const uint32_t (&other)[4], uint32_t rows) {
#pragma unroll
  for (int t = 0; t < kTiles / 2; ++t) {
    uint32_t b[4];
    load_matrices_transposed(b, rows ^ (2 * t * kChunkBytes));
    multiply_add(sums[2 * t], a, b[0], b[1], Scalar{});
    multiply_add(sums[2 * t + 1], a, b[2], b[3], Scalar{});
    multiply_add(other_sums[2 * t], other, b[0], b[1], Scalar{});
    multiply_add(other_sums[2 * t + 1], other, b[2], b[3], Scalar{});
  }
}

// Converts two adjacent fragments to a left operand.
template <typename Scalar>
QACG_DEVICE void narrow_fragments(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = narrow_pair(left[0], left[1], Scalar{});
  a[1] = narrow_pair(left[2], left[3], Scalar{});
  a[2] = narrow_pair(right[0], right[1], Scalar{});
  a[3] = narrow_pair(right[2], right[3], Scalar{});
}

// Stores kTiles fragments of a strip as 16-bit elements, from column 8 first_fragment of the tile on; first_fragment is
// a multiple of kTiles.
template <typename Scalar, int kTiles, int kDim>
QACG_DEVICE void store_strip(const Tile<kDim>& tile, int first_row, int first_fragment, const float (&c)[kTiles][4]) {
  const uint32_t to = tile.at(first_row + lane() / 4, first_fragment) + 4 * (lane() % 4);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    store_word(to ^ (t * kChunkBytes), narrow_pair(c[t][0], c[t][1], Scalar{}));
    store_word((to ^ (t * kChunkBytes)) + 8 * Tile<kDim>::kPitch, narrow_pair(c[t][2], c[t][3], Scalar{}));
  }
}

// Writes `count` rows of a tile to rows of a tensor from row `first` on, by kThreads threads of which this is `thread`.
template <typename Scalar, int kThreads, int kDim>
QACG_DEVICE void write_rows(const Problem& p, const Sequence& s, const Tile<kDim>& tile, int tile_row, int count,
                            const Tensor4& t, int first, int thread) {
  constexpr int kChunks = Tile<kDim>::kChunks;
  for (int n = thread; n < count * kChunks; n += kThreads) {
    const int row = n / kChunks, chunk = n % kChunks;
    if (chunk * kChunk >= p.head_dim) continue;
    Scalar* to = static_cast<Scalar*>(t.data) + offset_of(t, s, first + row) + chunk * kChunk;
    *reinterpret_cast<Bytes16*>(to) = load_bytes(tile.at(tile_row + row, chunk));
  }
}

// Runs body(n, n % 2) for tiles 0 to count - 1, whose copies load(n, n % 2) starts one tile ahead. Copies started
// before the call are complete in the first body. Ends with no copy under way and a barrier.
template <typename Load, typename Body>
QACG_DEVICE void pipelined(int count, const Load& load, const Body& body) {
  if (count > 0) load(0, 0);
  commit_copies();
#pragma unroll 1
  for (int n = 0; n < count; ++n) {
    if (n + 1 < count) load(n + 1, (n + 1) % 2);
    commit_copies();
    wait_for_copies<1>();
    synchronise_block();
    body(n, n % 2);
    synchronise_block();
  }
  // If there are no tiles, nothing has waited for earlier copies, some of which other threads started.
  wait_for_copies<0>();
  synchronise_block();
}

// Allocates a block's shared memory from its start.
class Arena {
 public:
  template <int kDim>
  QACG_DEVICE Tile<kDim> tile(int rows) {
    return {shared_address(take(rows * 2 * kDim))};
  }

  template <typename T>
  QACG_DEVICE T* array(int count) {
    return reinterpret_cast<T*>(take(count * static_cast<int>(sizeof(T))));
  }

 private:
  QACG_DEVICE char* take(int bytes) {
    char* piece = shared_memory() + used_;
    used_ += (bytes + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
    return piece;
  }

  int used_ = 0;
};

// Bytes that an Arena uses for an array of `bytes` bytes.
constexpr int64_t arena_bytes(int64_t bytes) { return (bytes + kTileAlignment - 1) / kTileAlignment * kTileAlignment; }

}  // namespace qacg::cuda::mma

// Tiles of 16-bit rows in shared memory, and products of them by warps.
//
// A strip is 16 rows of a tile, one warp's part of a product: 16 x 8 cells in each fragment c[t], of which a thread holds
// c[t][0], c[t][1] in row lane / 4, columns 8 t + 2 (lane % 4) and the next, and c[t][2], c[t][3] eight rows further down.
#pragma once

#include "mma.h"
#include "sequence.h"

namespace qacg::cuda::mma {

constexpr int kStrip = 16;
constexpr int kChunk = 8;  // elements in the 16 bytes that one thread moves

QACG_DEVICE int lane() { return thread_index() % kWarp; }
QACG_DEVICE int warp() { return thread_index() / kWarp; }

// Offset of a chunk of a row, in elements. Chunks are permuted within 128 bytes, differently in eight rows that follow
// one another: the eight rows that ldmatrix reads at a time then lie in different banks.
template <int kDim>
QACG_SHARED int chunk_offset(int row, int chunk) {
  static_assert(kDim == 32 || kDim % 64 == 0);
  const int permuted = kDim == 32 ? chunk ^ (row / 2 % 4) : chunk ^ (row % 8);
  return row * kDim + permuted * kChunk;
}

// A tile of rows with kDim elements.
template <typename Scalar, int kDim>
struct Tile {
  Scalar* data;

  QACG_DEVICE Scalar* chunk(int row, int index) const { return data + chunk_offset<kDim>(row, index); }
};

// Starts copies of `count` rows of a tensor from row `first` of the sequence; the tile's other rows become 0, and so do
// dims at and beyond head_dim.
template <int kRows, int kThreads, typename Scalar, int kDim>
QACG_DEVICE void load_rows(const Problem& p, const Sequence& s, const Tensor4& t, int first, int count,
                           const Tile<Scalar, kDim>& tile) {
  constexpr int kChunks = kDim / kChunk;
  const Scalar* base = static_cast<const Scalar*>(t.data);
#pragma unroll
  for (int n = thread_index(); n < kRows * kChunks; n += kThreads) {
    const int row = n / kChunks, chunk = n % kChunks;
    const bool inside = row < count && chunk * kChunk < p.head_dim;
    copy_async(tile.chunk(row, chunk), inside ? base + offset_of(t, s, first + row) + chunk * kChunk : base, inside);
  }
}

// The left operand of a product: 16 rows, 16 columns from chunk `chunk`.
template <typename Scalar, int kDim>
QACG_DEVICE void load_left(uint32_t (&a)[4], const Tile<Scalar, kDim>& tile, int first_row, int chunk) {
  load_matrices(a, tile.chunk(first_row + lane() % 16, chunk + lane() / 16));
}

// The same of the transposed tile: 16 of its columns from chunk `chunk`, 16 of its rows.
template <typename Scalar, int kDim>
QACG_DEVICE void load_left_transposed(uint32_t (&a)[4], const Tile<Scalar, kDim>& tile, int first_row, int chunk) {
  load_matrices_transposed(a, tile.chunk(first_row + lane() % 8 + lane() / 16 * 8, chunk + lane() / 8 % 2));
}

// c += rows of `left` times rows of `right`, dim by dim: a strip against 8 kTiles rows.
template <int kTiles, typename Scalar, int kDim>
QACG_DEVICE void add_products(float (&c)[kTiles][4], const Tile<Scalar, kDim>& left, int left_row,
                              const Tile<Scalar, kDim>& right, int right_row) {
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    uint32_t a[4], b[4];
    load_left(a, left, left_row, 2 * k);
#pragma unroll
    for (int t = 0; t < kTiles / 2; ++t) {
      load_matrices(b, right.chunk(right_row + 16 * t + lane() % 8 + lane() / 16 * 8, 2 * k + lane() / 8 % 2));
      multiply_add(c[2 * t], a, b[0], b[1], Scalar{});
      multiply_add(c[2 * t + 1], a, b[2], b[3], Scalar{});
    }
  }
}

// sums += a (16 x 16) times 16 rows of a tile, for 8 kTiles dims from chunk `chunk`.
template <int kTiles, typename Scalar, int kDim>
QACG_DEVICE void add_weighted(float (&sums)[kTiles][4], const uint32_t (&a)[4], const Tile<Scalar, kDim>& tile,
                              int first_row, int chunk) {
#pragma unroll
  for (int t = 0; t < kTiles / 2; ++t) {
    uint32_t b[4];
    load_matrices_transposed(b, tile.chunk(first_row + lane() % 16, chunk + 2 * t + lane() / 16));
    multiply_add(sums[2 * t], a, b[0], b[1], Scalar{});
    multiply_add(sums[2 * t + 1], a, b[2], b[3], Scalar{});
  }
}

// Two fragments of cells that lie side by side, as a left operand.
template <typename Scalar>
QACG_DEVICE void narrow_cells(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = narrow_pair(left[0], left[1], Scalar{});
  a[1] = narrow_pair(left[2], left[3], Scalar{});
  a[2] = narrow_pair(right[0], right[1], Scalar{});
  a[3] = narrow_pair(right[2], right[3], Scalar{});
}

// Stores fragments of a strip as 16-bit elements, from column 8 first_fragment of the tile on.
template <int kTiles, typename Scalar, int kDim>
QACG_DEVICE void store_strip(const Tile<Scalar, kDim>& tile, int first_row, int first_fragment,
                             const float (&c)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Scalar* to = tile.chunk(first_row + lane() / 4 + 8 * half, first_fragment + t) + 2 * (lane() % 4);
      *reinterpret_cast<uint32_t*>(to) = narrow_pair(c[t][2 * half], c[t][2 * half + 1], Scalar{});
    }
  }
}

struct alignas(16) Bytes16 {
  uint32_t word[4];
};

// Writes `count` rows of a tile to rows of a tensor from row `first` on, by kThreads threads of which this is `thread`.
template <int kThreads, typename Scalar, int kDim>
QACG_DEVICE void write_rows(const Problem& p, const Sequence& s, const Tile<Scalar, kDim>& tile, int tile_row,
                            int count, const Tensor4& t, int first, int thread) {
  constexpr int kChunks = kDim / kChunk;
  for (int n = thread; n < count * kChunks; n += kThreads) {
    const int row = n / kChunks, chunk = n % kChunks;
    if (chunk * kChunk >= p.head_dim) continue;
    Scalar* to = static_cast<Scalar*>(t.data) + offset_of(t, s, first + row) + chunk * kChunk;
    *reinterpret_cast<Bytes16*>(to) = *reinterpret_cast<const Bytes16*>(tile.chunk(tile_row + row, chunk));
  }
}

// Runs body(n, n % 2) for tiles 0 to count - 1, whose copies load(n, n % 2) starts one tile ahead. Copies started before
// the call are complete in the first body.
template <typename Load, typename Body>
QACG_DEVICE void pipelined(int count, const Load& load, const Body& body) {
  if (count > 0) load(0, 0);
  commit_copies();
  for (int n = 0; n < count; ++n) {
    if (n + 1 < count) load(n + 1, (n + 1) % 2);
    commit_copies();
    wait_for_copies<1>();
    synchronise_block();
    body(n, n % 2);
    synchronise_block();
  }
  wait_for_copies<0>();
}

// Hands out shared memory; every piece is aligned to 128 bytes.
class Arena {
 public:
  QACG_DEVICE explicit Arena(char* memory) : next_(memory) {}

  template <typename T>
  QACG_DEVICE T* take(int count) {
    T* piece = reinterpret_cast<T*>(next_);
    next_ += (count * static_cast<int>(sizeof(T)) + 127) / 128 * 128;
    return piece;
  }

 private:
  char* next_;
};

}  // namespace qacg::cuda::mma

// Products on AMX tiles: a tile register holds 16 rows of 64 bytes, and one instruction multiplies 16 x 32 by 32 x 16
// bfloat16 numbers into 16 x 16 float32 sums.
//
// A float32 operand is the exact sum of three bfloat16 parts, 8 bits each, and a product of two operands is the sum of
// the six largest of the nine products of parts. The omitted products are at most 2^-23 of a term, of either sign; the
// sums pass the error rule of float32 (qacg_kernels/operators/error_rule.py). Parts below 2^-126 count as zero, so
// operands below about 2^-110 lose bits. A bfloat16 operand is one part. An infinite operand gives NaN, because its
// parts contain infinity minus itself.
//
// Operands are stored as whole tiles of 1 KB, with the parts of a tile one after another, so that every load reads 16
// full cache lines. Both sides order the depth of a tile in pairs. Those of bfloat16 are (2k, 2k + 1), as in memory: a
// row is copied, and one instruction narrows two registers. Those of parts are (k, k + 16): one shift and one selection
// turn two registers into pairs.
#pragma once

#include "pack.h"
#include "prefetch.h"
#include "prefetch_amx.h"
#include "problem.h"

namespace QACG_ISA {

constexpr int64_t kTileSide = 16, kTileDepth = 32, kTileSize = kTileSide * kTileDepth;

// Tile registers 0 to 3 are the 2 x 2 tiles of the result, 4 and 5 the left operand, 6 and 7 the right one.
struct alignas(64) TileConfiguration {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes_per_row[16];
  uint8_t rows[16];
};
// A variable in memory, because the intrinsic declares that it reads only eight bytes.
constexpr TileConfiguration kTiles = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

template <int kRowTiles>
QACG_INLINE void load_left(const HalfBits* a, int64_t next_tile) {
  _tile_loadd(4, a, 64);
  if constexpr (kRowTiles == 2) _tile_loadd(5, a + next_tile, 64);
}

template <int kColTiles>
QACG_INLINE void load_right(const HalfBits* b, int64_t next_tile) {
  _tile_loadd(6, b, 64);
  if constexpr (kColTiles == 2) _tile_loadd(7, b + next_tile, 64);
}

template <int kRowTiles, int kColTiles>
QACG_INLINE void multiply_tiles() {
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kColTiles == 2) _tile_dpbf16ps(1, 4, 7);
  if constexpr (kRowTiles == 2) _tile_dpbf16ps(2, 5, 6);
  if constexpr (kRowTiles == 2 && kColTiles == 2) _tile_dpbf16ps(3, 5, 7);
}

template <int kRowTiles, int kColTiles>
QACG_INLINE void load_sums(const float* c, int64_t stride) {
  _tile_loadd(0, c, stride * 4);
  if constexpr (kColTiles == 2) _tile_loadd(1, c + kTileSide, stride * 4);
  if constexpr (kRowTiles == 2) _tile_loadd(2, c + kTileSide * stride, stride * 4);
  if constexpr (kRowTiles == 2 && kColTiles == 2) _tile_loadd(3, c + kTileSide * stride + kTileSide, stride * 4);
}

template <int kRowTiles, int kColTiles>
QACG_INLINE void store_sums(float* c, int64_t stride) {
  _tile_stored(0, c, stride * 4);
  if constexpr (kColTiles == 2) _tile_stored(1, c + kTileSide, stride * 4);
  if constexpr (kRowTiles == 2) _tile_stored(2, c + kTileSide * stride, stride * 4);
  if constexpr (kRowTiles == 2 && kColTiles == 2) _tile_stored(3, c + kTileSide * stride + kTileSide, stride * 4);
}

// Tiles of an operand. `next` is the distance to the tile of the next 16 rows (or columns), and `deeper` that to the
// tile of the next 32 of the depth, in elements.
struct Tiles {
  const HalfBits* data;
  int64_t next, deeper;
};

// C (16 kRowTiles x 16 kColTiles) = or += A B over `depth` tiles. Calls between() after every few instructions.
template <int kParts, int kRowTiles, int kColTiles, typename F>
QACG_INLINE void tile_product(const F& between, int64_t depth, Tiles a, Tiles b, float* c, int64_t c_stride,
                              bool accumulate) {
  if (accumulate) {
    load_sums<kRowTiles, kColTiles>(c, c_stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < depth; ++k, a.data += a.deeper, b.data += b.deeper) {
    const auto left = [&](int part) QACG_INLINE_LAMBDA { load_left<kRowTiles>(a.data + part * kTileSize, a.next); };
    const auto right = [&](int part) QACG_INLINE_LAMBDA { load_right<kColTiles>(b.data + part * kTileSize, b.next); };
    const auto multiply = [&]() QACG_INLINE_LAMBDA {
      multiply_tiles<kRowTiles, kColTiles>();
      between();
    };
    if constexpr (kParts == 3) {
      // This order loads few tiles; the largest product is last.
      left(0), right(2), multiply();
      right(1), multiply();
      left(1), multiply();
      right(0), multiply();
      left(2), multiply();
      left(0), multiply();
    } else {
      left(0), right(0), multiply();
    }
  }
  store_sums<kRowTiles, kColTiles>(c, c_stride);
}

template <typename InputScalar>
struct AmxEngine {
  using Scalar = InputScalar;
  using Packed = HalfBits;
  static constexpr int kParts = sizeof(Scalar) == sizeof(float) ? 3 : 1;
  struct Left {
    const Packed* data;
    int64_t next;  // from 16 rows to the next 16
  };
  static constexpr int64_t kKeyStep = kTileDepth;
  static constexpr int64_t kRowStep = kTileSide;
  static constexpr int64_t kRowBlock = 128;
  static constexpr int64_t kWholeRowKeys = 2048;
  static constexpr int64_t kDeeper = kParts * kTileSize;
  static constexpr int64_t kKeySumColumns = 32;
  // The elements of pair p of a tile's depth are kPairStep p and kPairGap later.
  static constexpr int64_t kPairStep = kParts == 1 ? 2 : 1, kPairGap = kParts == 1 ? 1 : kTileSide;

  explicit AmxEngine(const qacg::Problem&) { _tile_loadconfig(&kTiles); }
  ~AmxEngine() { _tile_release(); }
  AmxEngine(const AmxEngine&) = delete;

  PrefetchBetweenTiles prefetch;  // of the caller's tensors
  Stream keys_ahead;  // packed keys that are out of the cache
  // Calls of prefetch.step() in one row block, for these numbers of score products, sums over keys and sums over rows.
  static int64_t steps(int64_t keys, int64_t dim, int64_t scores, int64_t key_sums, int64_t row_sums) {
    const int64_t blocks = kRowBlock / 32 * ((keys + 31) / 32) * (dim / 32);
    return blocks * (scores + key_sums + row_sums) * (kParts == 3 ? 6 : 1);
  }

  static int64_t padded_dim(int64_t head_dim) { return round_up(head_dim, kTileDepth); }
  static int64_t panels_size(int64_t keys, int64_t dim) { return round_up(keys, kTileDepth) * dim * kParts; }
  static int64_t rows_size(int64_t rows, int64_t dim) { return round_up(rows, kTileDepth) * dim * kParts; }
  static int64_t pack_left_size(int64_t rows, int64_t dim) { return round_up(rows, kTileSide) * dim * kParts; }
  static int64_t left_size(int64_t rows, int64_t cols) {
    return round_up(rows, kTileSide) * round_up(cols, kTileDepth) * kParts;
  }

  // Pairs the lanes of two registers and stores the pairs at `to`: one register for each part, kTileSize apart. The
  // first part is rounded, so the rest may have either sign. Later parts are truncated, and the last one is exact.
  static QACG_INLINE void store_pairs(Vec low, Vec high, Packed* to) {
    constexpr uint32_t kUpperHalf = 0xffff0000u, kHalfUnit = 0x8000u;
#pragma GCC unroll 3
    for (int part = 0; part < kParts; ++part, to += kTileSize) {
      UintVec a = (UintVec)low, b = (UintVec)high;
      // If the addition turns a NaN into a number, the rest is still NaN.
      if (part == 0) a += kHalfUnit, b += kHalfUnit;
      const UintVec pairs = (UintVec)_mm512_mask_blend_epi16(0xAAAAAAAA, (__m512i)(a >> 16), (__m512i)b);
      memcpy(to, &pairs, sizeof(pairs));
      low -= (Vec)(a & kUpperHalf);
      high -= (Vec)(b & kUpperHalf);
    }
  }

  // Stores 32 elements of one row as pairs along the row: two registers, or the elements in memory from d on.
  static QACG_INLINE void store_row(Vec low, Vec high, Packed* to) {
    if constexpr (kParts == 3) {
      store_pairs(low, high, to);
    } else {
      store_both(to, low, high);
    }
  }
  static QACG_INLINE void store_row(const Scalar* row, int64_t d, int64_t head_dim, Packed* to) {
    if constexpr (kParts == 3) {
      store_pairs(lanes_of(row, d, head_dim), lanes_of(row, d + kLanes, head_dim), to);
    } else {
      const Vec both = pairs_of(row, d, head_dim);
      memcpy(to, &both, sizeof(both));
    }
  }

  // Lanes d to d + 15 of a row, zero beyond the head size.
  static QACG_INLINE Vec lanes_of(const Scalar* row, int64_t d, int64_t head_dim) {
    if (d + kLanes <= head_dim) return load(row + d);
    float tail[kLanes] = {};
    for (int64_t k = d; k < head_dim; ++k) tail[k - d] = widen(row[k]);
    return load(tail);
  }

  // `rows` rows as the left operand of scores.
  static Left pack_left(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to) {
    const int64_t dim = padded_dim(head_dim), next = dim / kTileDepth * kDeeper;
    for (int64_t i = 0; i < rows; ++i) {
      Packed* tile = to + i / kTileSide * next + i % kTileSide * kTileDepth;
      for (int64_t d = 0; d < dim; d += kTileDepth, tile += kDeeper) store_row(from + i * stride, d, head_dim, tile);
    }
    return {to, next};
  }

  // Transposes the pairs (32 bits) in each of the tiles.
  static void transpose_tiles(Packed* tile, int64_t tiles) {
    for (; tiles > 0; --tiles, tile += kTileSize) {
      Vec block[kLanes];
      load_columns(reinterpret_cast<float*>(tile), kTileSide, block);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) memcpy(tile + i * kTileDepth, &block[i], sizeof(Vec));
    }
  }

  // Packs the columns of a block of 16 x 32 elements (32 x 16 if `down`) as one tile of pairs for each part. Only the
  // first `rows` rows and `columns` columns exist; other elements count as 0.
  static QACG_INLINE void pack_columns(const Scalar* from, int64_t stride, int64_t rows, int64_t columns, bool down,
                                       Packed* tile) {
    Vec low[kLanes], high[kLanes];
    load_columns(from, stride, rows, columns, low);
    if (down) {
      load_columns(from + kLanes * stride, stride, rows - kLanes, columns, high);
    } else {
      load_columns(from + kLanes, stride, rows, columns - kLanes, high);
    }
#pragma GCC unroll 16
    for (int64_t p = 0; p < kLanes; ++p) store_pairs(low[p], high[p], tile + p * kTileDepth);
  }

  // `rows` rows as the right operand of scores: tiles of 16 rows, transposed; zeros in the rows up to a multiple of 32.
  static void pack_panels(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to) {
    const int64_t next = padded_dim(head_dim) / kTileDepth * kDeeper;
    for (int64_t first = 0; first < round_up(rows, kTileDepth); first += kTileSide, to += next) {
      if constexpr (kParts == 3) {
        for (int64_t d = 0; d < head_dim; d += kTileDepth) {
          pack_columns(from + first * stride + d, stride, rows - first, head_dim - d, false,
                       to + d / kTileDepth * kDeeper);
        }
      } else {
        const int64_t count = smaller(rows - first, kTileSide);
        if (count < kTileSide) memset(to, 0, next * sizeof(Packed));
        if (count <= 0) continue;
        pack_left(from + first * stride, stride, count, head_dim, to);
        transpose_tiles(to, next / kTileSize);
      }
    }
  }

  // `rows` rows as the right operand of a sum over rows: the tiles of 32 rows side by side.
  static void pack_rows(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to) {
    const int64_t dim = padded_dim(head_dim);
    for (int64_t first = 0; first < rows; first += kTileDepth) {
      for (int64_t p = 0; p < kTileSide; ++p) {
        const int64_t low = first + p * kPairStep, high = low + kPairGap;
        Packed* tile = to + first / kTileDepth * (dim / kTileSide) * kDeeper + p * kTileDepth;
        int64_t d = 0;
        if constexpr (kParts == 1) {
          for (; high < rows && d + kTileSide <= head_dim; d += kTileSide, tile += kDeeper) {
            store_joined(from + low * stride + d, from + high * stride + d, tile);
          }
        }
        for (; d < dim; d += kTileSide, tile += kDeeper) {
          store_pairs(low < rows ? lanes_of(from + low * stride, d, head_dim) : Vec{},
                      high < rows ? lanes_of(from + high * stride, d, head_dim) : Vec{}, tile);
        }
      }
    }
  }

  // `rows` rows, transposed, as the left operand of key_sums().
  static void pack_summed(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to) {
    const int64_t dim = padded_dim(head_dim);
    if constexpr (kParts == 3) {
      for (int64_t first = 0; first < rows; first += kTileDepth) {
        for (int64_t d = 0; d < dim; d += kTileSide, to += kDeeper) {
          pack_columns(from + first * stride + d, stride, rows - first, head_dim - d, true, to);
        }
      }
    } else {
      pack_rows(from, stride, rows, head_dim, to);
      transpose_tiles(to, round_up(rows, kTileDepth) / kTileDepth * (dim / kTileSide) * kParts);
    }
  }

  static constexpr bool kPacksTiles = true;
  template <typename F>
  static QACG_INLINE void put_row(float*, Packed* left, int64_t r, int64_t seen, int64_t cols, const F& f) {
    Packed* to = left + r / kTileSide * (cols / kTileDepth * kDeeper) + r % kTileSide * kTileDepth;
    int64_t j = 0;
    for (; j + kTileDepth <= seen; j += kTileDepth, to += kDeeper) {
      store_row(f(j, kAllLanes), f(j + kLanes, kAllLanes), to);
    }
    for (; j < cols; j += kTileDepth, to += kDeeper) {
      const IntVec low = lanes_below(seen - j), high = lanes_below(seen - j - kLanes);
      store_row(keep_where(low, f(j, low)), keep_where(high, f(j + kLanes, high)), to);
    }
  }
  static Left put_rows(const float*, int64_t, Packed* left, int64_t, int64_t cols) {
    return {left, cols / kTileDepth * kDeeper};
  }

  // A computed tile as a left operand.
  static Left left(const float* tile, int64_t stride, int64_t rows, int64_t cols, Packed* to) {
    const int64_t next = cols / kTileDepth * kDeeper;
    for (int64_t r = 0; r < rows; ++r) {
      Packed* out = to + r / kTileSide * next + r % kTileSide * kTileDepth;
      const float* row = tile + r * stride;
      for (int64_t j = 0; j < cols; j += kTileDepth, out += kDeeper) {
        store_row(load(row + j), load(row + j + kLanes), out);
      }
    }
    return {to, next};
  }

  // C (rows x cols) = A X^T for packed columns from `first` on, a multiple of 32. Writes whole tiles of rows.
  void scores(int64_t rows, int64_t cols, int64_t dim, Left a, const Packed* panels, int64_t first, float* c,
              int64_t c_stride) {
    const int64_t depth = dim / kTileDepth;
    product(rows, cols, depth, {a.data, a.next, kDeeper}, right_of(panels, first, depth), c, c_stride, false, kNothing);
  }

  // Also computes `largest`: for every row (of whole tiles) a register whose largest lane is the largest of the row.
  // This arithmetic overlaps with the multiplication of later tiles.
  static constexpr bool kTakesLargest = true;
  void scores_and_largest(int64_t rows, int64_t cols, int64_t dim, Left a, const Packed* panels, int64_t first,
                          float* c, int64_t c_stride, Vec* largest) {
    const int64_t depth = dim / kTileDepth;
    for (int64_t r = 0; r < round_up(rows, kTileSide); ++r) largest[r] = splat(-__builtin_inff());
    product(rows, cols, depth, {a.data, a.next, kDeeper}, right_of(panels, first, depth), c, c_stride, false,
            [&](int64_t m, int64_t n, int64_t stored_rows) QACG_INLINE_LAMBDA {
              for (int64_t r = m; r < m + stored_rows; ++r) {
                const float* row = c + r * c_stride + n;
                largest[r] = at_least(at_least(load(row), load(row + kLanes)), largest[r]);
              }
            });
  }

  // C (rows x dim) = or += A X for packed rows from `first` on, a multiple of 32.
  void weighted_sum(int64_t rows, int64_t depth, int64_t dim, Left a, const Packed* packed, int64_t first, float* c,
                    bool accumulate) {
    const int64_t deeper = dim / kTileSide * kDeeper;
    product(rows, dim, round_up(depth, kTileDepth) / kTileDepth, {a.data, a.next, kDeeper},
            {packed + first / kTileDepth * deeper, kDeeper, deeper}, c, dim, accumulate, kNothing);
  }

  // total = or += T^T X, for a tile T (rows x keys) and X from pack_summed(). `total` has the sums of `all_keys` keys,
  // of which the tile's keys are those from `first` on. The sums are stored transposed, dim x keys: T is then a right
  // operand, whose pairs are whole rows.
  void key_sums(const float* tile, int64_t stride, int64_t rows, int64_t keys, int64_t dim, const Packed* x,
                Packed* scratch, float* total, int64_t first, int64_t all_keys, bool accumulate) {
    const int64_t depth = round_up(rows, kTileDepth) / kTileDepth;
    // A few columns at a time, so that they are in the first-level cache from packing to product.
    for (int64_t j0 = 0; j0 < keys; j0 += kKeySumColumns) {
      const int64_t cols = round_up(smaller(kKeySumColumns, keys - j0), kTileDepth);
      const int64_t deeper = cols / kTileSide * kDeeper;
      for (int64_t p = 0; p < depth * kTileSide; ++p) {
        const int64_t low = p / kTileSide * kTileDepth + p % kTileSide * kPairStep, high = low + kPairGap;
        Packed* to = scratch + p / kTileSide * deeper + p % kTileSide * kTileDepth;
        for (int64_t j = j0; j < j0 + cols; j += kTileSide, to += kDeeper) {
          store_pairs(low < rows ? load(tile + low * stride + j) : Vec{},
                      high < rows ? load(tile + high * stride + j) : Vec{}, to);
        }
      }
      product(dim, cols, depth, {x, kDeeper, dim / kTileSide * kDeeper}, {scratch, kDeeper, deeper}, total + first + j0,
              key_sums_stride(all_keys), accumulate, kNothing);
    }
  }
  static int64_t key_sums_stride(int64_t keys) { return keys + kTileSide; }
  static int64_t key_sums_size(int64_t keys, int64_t dim) { return dim * key_sums_stride(keys); }

  static float* key_sum_rows(float* total, int64_t first, int64_t all_keys, int64_t dim, float* rows) {
    for (int64_t d = 0; d < dim; d += kLanes) {
      Vec block[kLanes];
      load_columns(total + d * key_sums_stride(all_keys) + first, key_sums_stride(all_keys), block);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) store(rows + i * dim + d, block[i]);
    }
    return rows;
  }

 private:
  static constexpr auto kNothing = [](int64_t, int64_t, int64_t) {};

  static Tiles right_of(const Packed* panels, int64_t first, int64_t depth) {
    const int64_t next = depth * kDeeper;
    return {panels + first / kTileSide * next, next, kDeeper};
  }

  // `cols` is a multiple of 32. stored(m, n, count) is called when `count` rows from m on of the 32 columns from n on
  // are in C.
  template <typename F>
  void product(int64_t rows, int64_t cols, int64_t depth, Tiles a, Tiles b, float* c, int64_t c_stride, bool accumulate,
               const F& stored) {
    // The compiler assumes that tile instructions access no memory, although they load operands that were just packed,
    // and their results are read soon after.
    const auto memory_changes = []() QACG_INLINE_LAMBDA { asm volatile("" ::: "memory"); };
    const auto between = [&]() QACG_INLINE_LAMBDA { prefetch.step(), keys_ahead.step(); };
    memory_changes();
    for (int64_t n = 0; n < cols; n += 2 * kTileSide, b.data += 2 * b.next) {
      Tiles left = a;
      for (int64_t m = 0; m < rows; m += 2 * kTileSide, left.data += 2 * left.next) {
        const bool one = rows - m <= kTileSide;
        const int64_t count = one ? kTileSide : 2 * kTileSide;
        const auto multiply = [&](float* to, int64_t stride, bool add) QACG_INLINE_LAMBDA {
          if (one) {
            tile_product<kParts, 1, 2>(between, depth, left, b, to, stride, add);
          } else {
            tile_product<kParts, 2, 2>(between, depth, left, b, to, stride, add);
          }
          memory_changes();
        };
        float* to = c + m * c_stride + n;
        if (kParts == 3 && accumulate) {
          // Each of six products rounds the sum, so a long sum would exceed the error rule if tiles continued it.
          alignas(64) float block[2 * kTileSide * kTileDepth];
          multiply(block, kTileDepth, false);
          for (int64_t r = 0; r < count; ++r) {
            for (int64_t j = 0; j < kTileDepth; j += kLanes) {
              store(to + r * c_stride + j, load(to + r * c_stride + j) + load(block + r * kTileDepth + j));
            }
          }
        } else {
          multiply(to, c_stride, accumulate);
        }
        stored(m, n, count);
      }
    }
  }
};

}  // namespace QACG_ISA

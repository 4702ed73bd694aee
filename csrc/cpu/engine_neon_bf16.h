// Products of bfloat16 operands with float32 sums by the instruction BFMMLA: two rows of four elements by two columns
// of four, to a register of 2 x 2 sums. BFMMLA rounds each sum to odd, which is half as exact as rounding to nearest
// and exact enough for products of bfloat16.
//
// Operands are packed in pieces of four elements along the depth, stored in pairs: a register contains the pieces of
// two rows (of a left operand) or of two columns (of a right one) at the same depth.
#pragma once

#include "pack.h"
#include "prefetch.h"
#include "problem.h"

namespace QACG_ISA {

struct NeonBf16Engine {
  using Scalar = HalfBits;
  using Packed = HalfBits;
  // Rows i and i + 1 (i even) share 2 * depth elements.
  struct Left {
    const HalfBits* data;
    int64_t depth;
  };
  static constexpr int64_t kPiece = 4, kPair = 2 * kPiece;
  static constexpr int64_t kKeyStep = 8;
  static constexpr int64_t kRowStep = 2;
  static constexpr int64_t kRowBlock = 64;
  static constexpr int64_t kWholeRowKeys = 512;
  static constexpr int64_t kColumns = 8;  // of a product, and the panel width
  static constexpr int kBlockPairs = 6;  // pairs of rows of a product: 24 registers of sums
  static constexpr int64_t kDepth = 128;  // of a sum per product

  explicit NeonBf16Engine(const qacg::Problem&) {}

  Prefetch prefetch;  // of the caller's tensors
  Stream keys_ahead;  // packed keys that are out of the cache
  // Calls of prefetch.step() in one row block, for these numbers of score products, sums over keys and sums over rows.
  static int64_t steps(int64_t keys, int64_t dim, int64_t scores, int64_t key_sums, int64_t row_sums) {
    const int64_t groups = groups_of(kRowBlock), panels = (keys + kColumns - 1) / kColumns, dim_panels = dim / kColumns;
    return groups * panels * scores + groups * dim_panels * ((keys + kDepth - 1) / kDepth) * key_sums +
           groups_of(keys) * dim_panels * row_sums;
  }

  static int64_t padded_dim(int64_t head_dim) { return round_up(head_dim, kColumns); }
  static int64_t panels_size(int64_t keys, int64_t dim) { return round_up(keys, kColumns) * dim; }
  static int64_t rows_size(int64_t rows, int64_t dim) { return round_up(rows, kKeyStep) * dim; }
  static int64_t pack_left_size(int64_t rows, int64_t dim) { return round_up(rows, kRowStep) * dim; }
  static int64_t left_size(int64_t rows, int64_t cols) { return round_up(rows, kKeyStep) * round_up(cols, kKeyStep); }

  static void pack_panels(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to) {
    const int64_t dim = padded_dim(head_dim);
    for (int64_t n = 0; n < round_up(rows, kColumns); n += 2) {
      pack_pair(from + n * stride, stride, rows - n, head_dim,
                to + n / kColumns * kColumns * dim + n % kColumns * kPiece, kColumns * kPiece);
    }
  }

  static Left pack_left(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to) {
    const int64_t dim = padded_dim(head_dim);
    for (int64_t i = 0; i < rows; i += 2) pack_pair(from + i * stride, stride, rows - i, head_dim, to + i * dim, kPair);
    return {to, dim};
  }

  // The depth runs over rows: for each element, its values in four rows are one piece.
  static void pack_rows(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to) {
    const int64_t dim = padded_dim(head_dim);
    for (int64_t i = 0; i < round_up(rows, kKeyStep); i += kPiece) {
      for (int64_t d = 0; d < dim; d += 8) {
        uint16x8_t eight[kPiece];
#pragma GCC unroll 4
        for (int64_t r = 0; r < kPiece; ++r) eight[r] = row_part(from + (i + r) * stride, i + r < rows, d, head_dim);
        put_across(eight, to + i * dim + d * kPiece, kPair);
      }
    }
  }
  static void pack_summed(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to) {
    pack_rows(from, stride, rows, head_dim, to);
  }

  static constexpr bool kPacksTiles = true;
  template <typename F>
  static QACG_INLINE void put_row(float*, Packed* left, int64_t r, int64_t seen, int64_t cols, const F& f) {
    Packed* row = left + r / 2 * 2 * cols + r % 2 * kPiece;
    int64_t j = 0;
    for (; j + kLanes <= seen; j += kLanes) store(row + 2 * j, f(j, kAllLanes));
    if (j < seen) store(row + 2 * j, f(j, lanes_below(seen - j))), j += kLanes;
    for (; j < cols; j += kLanes) store(row + 2 * j, Vec{});
  }
  static Left put_rows(const float*, int64_t, Packed* left, int64_t rows, int64_t cols) {
    if (rows % 2) put_row(nullptr, left, rows, 0, cols, [](int64_t, IntVec) { return Vec{}; });
    return {left, cols};
  }

  static Left left(const float* tile, int64_t stride, int64_t rows, int64_t cols, Packed* to) {
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = tile + r * stride;
      put_row(nullptr, to, r, cols, cols, [&](int64_t j, IntVec) QACG_INLINE_LAMBDA { return load(row + j); });
    }
    return put_rows(nullptr, 0, to, rows, cols);
  }

  // Rows of the operand are columns of the tile.
  static Left left_transposed(const float* tile, int64_t stride, int64_t rows, int64_t cols, Packed* to) {
    const int64_t depth = round_up(rows, kKeyStep);
    for (int64_t r = 0; r < depth; r += kPiece) {
      for (int64_t j = 0; j < cols; j += 8) {
        uint16x8_t eight[kPiece];
#pragma GCC unroll 4
        for (int64_t i = 0; i < kPiece; ++i) {
          const float* from = tile + (r + i) * stride + j;
          eight[i] = r + i < rows
                         ? vcombine_u16((uint16x4_t)narrow(load(from)), (uint16x4_t)narrow(load(from + kLanes)))
                         : vdupq_n_u16(0);
        }
        put_across(eight, to + j * depth + r * 2, 2 * depth);
      }
    }
    return {to, depth};
  }

  static constexpr bool kTakesLargest = false;
  void scores(int64_t rows, int64_t cols, int64_t dim, Left a, const Packed* panels, int64_t first, float* c,
              int64_t c_stride) {
    for (int64_t n = 0; n < cols; n += kColumns) {
      columns(rows, dim, a, panels + (first + n) * dim, kColumns * kPiece, c + n, c_stride, false);
    }
  }

  void weighted_sum(int64_t rows, int64_t depth, int64_t dim, Left a, const Packed* packed, int64_t first, float* c,
                    bool accumulate) {
    for (int64_t k = 0; k < depth; k += kDepth) {
      const int64_t slice = smaller(kDepth, depth - k);
      for (int64_t n = 0; n < dim; n += kColumns) {
        columns(rows, slice, {a.data + 2 * k, a.depth}, packed + (first + k) * dim + n * kPiece, dim * kPiece, c + n,
                dim, accumulate || k > 0);
      }
    }
  }

  void key_sums(const float* tile, int64_t stride, int64_t rows, int64_t keys, int64_t dim, const Packed* x,
                Packed* scratch, float* total, int64_t first, int64_t, bool accumulate) {
    const Left a = left_transposed(tile, stride, rows, round_up(keys, kKeyStep), scratch);
    weighted_sum(keys, rows, dim, a, x, 0, total + first * dim, accumulate);
  }
  static int64_t key_sums_size(int64_t keys, int64_t dim) { return keys * dim; }
  static float* key_sum_rows(float* total, int64_t first, int64_t, int64_t dim, float*) { return total + first * dim; }

 private:
  static constexpr int64_t groups_of(int64_t rows) { return (rows + 2 * kBlockPairs - 1) / (2 * kBlockPairs); }

  // Eight elements of a row from d on; zeros beyond the row's end and for a row that does not exist.
  static QACG_INLINE uint16x8_t row_part(const Scalar* row, bool exists, int64_t d, int64_t head_dim) {
    if (exists && d + 8 <= head_dim) return vld1q_u16(row + d);
    Scalar part[8] = {};
    if (exists && d < head_dim) memcpy(part, row + d, (head_dim - d) * sizeof(Scalar));
    return vld1q_u16(part);
  }

  // Packs two rows, of which `rows` exist, as pairs of pieces that begin `step` elements apart.
  static QACG_INLINE void pack_pair(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to,
                                    int64_t step) {
    for (int64_t d = 0; d < padded_dim(head_dim); d += 8, to += 2 * step) {
      const uint64x2_t even = (uint64x2_t)row_part(from, rows > 0, d, head_dim);
      const uint64x2_t odd = (uint64x2_t)row_part(from + stride, rows > 1, d, head_dim);
      vst1q_u16(to, (uint16x8_t)vzip1q_u64(even, odd));
      vst1q_u16(to + step, (uint16x8_t)vzip2q_u64(even, odd));
    }
  }

  // Four rows of eight elements become eight pieces of four, in pairs that begin `step` elements apart.
  static QACG_INLINE void put_across(const uint16x8_t (&rows)[kPiece], Packed* to, int64_t step) {
    const uint32x4_t low01 = (uint32x4_t)vzip1q_u16(rows[0], rows[1]), low23 = (uint32x4_t)vzip1q_u16(rows[2], rows[3]);
    const uint32x4_t high01 = (uint32x4_t)vzip2q_u16(rows[0], rows[1]);
    const uint32x4_t high23 = (uint32x4_t)vzip2q_u16(rows[2], rows[3]);
    vst1q_u16(to, (uint16x8_t)vzip1q_u32(low01, low23));
    vst1q_u16(to + step, (uint16x8_t)vzip2q_u32(low01, low23));
    vst1q_u16(to + 2 * step, (uint16x8_t)vzip1q_u32(high01, high23));
    vst1q_u16(to + 3 * step, (uint16x8_t)vzip2q_u32(high01, high23));
  }

  // Multiplies kPairs pairs of rows by kColumns columns. The columns' pieces at one depth are adjacent, and those at
  // the next depth are `step` elements further.
  template <int kPairs>
  static QACG_INLINE void block(int64_t depth, Left a, const Packed* b, int64_t step, float* c, int64_t c_stride,
                                bool accumulate) {
    constexpr int kAcross = kColumns / 2;
    float32x4_t sums[kPairs][kAcross];
#pragma GCC unroll 6
    for (int p = 0; p < kPairs; ++p)
#pragma GCC unroll 4
      for (int n = 0; n < kAcross; ++n) sums[p][n] = vdupq_n_f32(0);
    for (int64_t k = 0; k < depth; k += kPiece, b += step) {
      bfloat16x8_t columns[kAcross];
#pragma GCC unroll 4
      for (int n = 0; n < kAcross; ++n) columns[n] = (bfloat16x8_t)vld1q_u16(b + n * kPair);
#pragma GCC unroll 6
      for (int p = 0; p < kPairs; ++p) {
        const bfloat16x8_t rows = (bfloat16x8_t)vld1q_u16(a.data + p * 2 * a.depth + 2 * k);
#pragma GCC unroll 4
        for (int n = 0; n < kAcross; ++n) sums[p][n] = vbfmmlaq_f32(sums[p][n], rows, columns[n]);
      }
    }
#pragma GCC unroll 6
    for (int p = 0; p < kPairs; ++p)
#pragma GCC unroll 2
      for (int n = 0; n < kAcross; n += 2) {
        const float64x2_t left = (float64x2_t)sums[p][n], right = (float64x2_t)sums[p][n + 1];
        put(c + 2 * p * c_stride + 2 * n, (Vec)vzip1q_f64(left, right), accumulate);
        put(c + (2 * p + 1) * c_stride + 2 * n, (Vec)vzip2q_f64(left, right), accumulate);
      }
  }
  static QACG_INLINE void put(float* to, Vec v, bool accumulate) { store(to, accumulate ? load(to) + v : v); }

  // Multiplies all rows by kColumns columns. Writes an even number of rows.
  void columns(int64_t rows, int64_t depth, Left a, const Packed* b, int64_t step, float* c, int64_t c_stride,
               bool accumulate) {
    int64_t pairs = (rows + 1) / 2;
    for (int64_t groups = groups_of(rows); pairs > 0; --groups) {
      const int64_t take = (pairs + groups - 1) / groups;  // distributed evenly
      switch (take) {
        case 6:
          block<6>(depth, a, b, step, c, c_stride, accumulate);
          break;
        case 5:
          block<5>(depth, a, b, step, c, c_stride, accumulate);
          break;
        case 4:
          block<4>(depth, a, b, step, c, c_stride, accumulate);
          break;
        case 3:
          block<3>(depth, a, b, step, c, c_stride, accumulate);
          break;
        case 2:
          block<2>(depth, a, b, step, c, c_stride, accumulate);
          break;
        default:
          block<1>(depth, a, b, step, c, c_stride, accumulate);
          break;
      }
      prefetch.step();
      a.data += take * 2 * a.depth;
      c += take * 2 * c_stride;
      pairs -= take;
    }
  }
};

}  // namespace QACG_ISA

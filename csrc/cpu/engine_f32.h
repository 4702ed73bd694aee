// Products in float32, for inputs of every element type.
#pragma once

#include "gemm_f32.h"
#include "pack.h"

namespace QACG_ISA {

template <typename InputScalar>
struct Float32Engine {
  using Scalar = InputScalar;
  using Packed = float;
  using Left = QACG_ISA::Left;
  // Scores are computed in multiples of kKeyStep columns; left operands have space for a multiple of kRowStep rows.
  static constexpr int64_t kKeyStep = kLanes;
  static constexpr int64_t kRowStep = 1;
  static constexpr int64_t kRowBlock = 64;
  static constexpr int64_t kWholeRowKeys = 2048;

  explicit Float32Engine(const qacg::Problem&) {}

  Prefetch prefetch;  // of the caller's tensors
  Stream keys_ahead;  // packed keys that are out of the cache
  // Calls of prefetch.step() in one row block, for these numbers of score products, sums over keys and sums over rows.
  static int64_t steps(int64_t keys, int64_t dim, int64_t scores, int64_t key_sums, int64_t row_sums) {
    const int64_t groups = kRowBlock / kBlockRows, panels = (keys + kPanel - 1) / kPanel;
    const int64_t dim_panels = (dim + kPanel - 1) / kPanel;
    return groups * panels * scores + groups * dim_panels * ((keys + kDepth - 1) / kDepth) * key_sums +
           (keys + kBlockRows - 1) / kBlockRows * dim_panels * row_sums;
  }

  static int64_t padded_dim(int64_t head_dim) { return round_up(head_dim, kLanes); }
  static int64_t panels_size(int64_t keys, int64_t dim) { return round_up(keys, kPanel) * dim; }
  static int64_t rows_size(int64_t rows, int64_t dim) { return rows * dim; }
  static int64_t left_size(int64_t, int64_t) { return 0; }

  // `rows` rows as the right operand of scores: X^T in panels of kPanel columns.
  static void pack_panels(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to) {
    const int64_t dim = padded_dim(head_dim);
    for (int64_t n = 0; n < round_up(rows, kLanes); n += kLanes) {
      float* panel = to + n / kPanel * kPanel * dim + n % kPanel;
      for (int64_t d = 0; d < dim; d += kLanes) {
        Vec block[kLanes];
        load_columns(from + n * stride + d, stride, rows - n, head_dim - d, block);
#pragma GCC unroll 16
        for (int64_t i = 0; i < kLanes; ++i) store(panel + (d + i) * kPanel, block[i]);
      }
    }
  }

  // Whether a sum over rows can read the caller's rows: whole registers of float32, one row after the other. (Rows
  // further apart would share few sets of the first-level cache.)
  static bool reads_in_place(int64_t stride, int64_t head_dim)
    requires(sizeof(Scalar) == sizeof(float))
  {
    return stride == head_dim && head_dim == padded_dim(head_dim);
  }

  // Whether key_sums() can read the rows of a left operand without packing them again.
  static bool sums_left(const Left& left, int64_t head_dim) { return left.row_stride == padded_dim(head_dim); }

  // `rows` rows as the right operand of a sum over rows.
  static void pack_rows(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to) {
    const int64_t dim = padded_dim(head_dim);
    for (int64_t i = 0; i < rows; ++i) widen_row(from + i * stride, head_dim, dim, to + i * dim);
  }

  // Packs `rows` rows as the operand that key_sums() sums.
  static void pack_summed(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to) {
    pack_rows(from, stride, rows, head_dim, to);
  }

  // `rows` rows as the left operand of scores; rows of whole float32 registers are not copied.
  static Left pack_left(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to) {
    if constexpr (sizeof(Scalar) == sizeof(float)) {
      if (head_dim == padded_dim(head_dim)) return {from, stride, 1};
    }
    pack_rows(from, stride, rows, head_dim, to);
    return {to, padded_dim(head_dim), 1};
  }
  static int64_t pack_left_size(int64_t rows, int64_t dim) { return rows * dim; }

  // Writes a row of a tile that becomes a left operand: f(j, lanes) in its registers up to `seen`, zeros up to `cols`.
  // Here the row is written to the tile; engines with packed operands write it to `left`.
  static constexpr bool kPacksTiles = false;
  template <typename F>
  static QACG_INLINE void put_row(float* row, Packed*, int64_t, int64_t seen, int64_t cols, const F& f) {
    int64_t j = 0;
    for (; j + kLanes <= seen; j += kLanes) store(row + j, f(j, kAllLanes));
    if (j < seen) store(row + j, f(j, lanes_below(seen - j))), j += kLanes;
    for (; j < cols; j += kLanes) store(row + j, Vec{});
  }
  // The left operand made of the rows that put_row() wrote.
  static Left put_rows(const float* tile, int64_t stride, Packed*, int64_t, int64_t) { return {tile, stride, 1}; }

  // A computed tile as a left operand.
  static Left left(const float* tile, int64_t stride, int64_t, int64_t, Packed*) { return {tile, stride, 1}; }

  static constexpr bool kTakesLargest = false;
  // C (rows x cols) = A X^T for packed columns from `first` on, a multiple of kPanel.
  void scores(int64_t rows, int64_t cols, int64_t dim, Left a, const Packed* panels, int64_t first, float* c,
              int64_t c_stride) {
    product_panels(prefetch, rows, cols, dim, a, panels + first * dim, c, c_stride);
  }

  // C (rows x dim) = or += A X for packed rows from `first` on.
  void weighted_sum(int64_t rows, int64_t depth, int64_t dim, Left a, const Packed* packed, int64_t first, float* c,
                    bool accumulate) {
    product_rows(prefetch, rows, dim, depth, a, packed + first * dim, dim, c, dim, accumulate);
  }

  // total = or += T^T X, for a tile T (rows x keys) and X from pack_summed(). The tile's keys are those from `first` on
  // in `total`.
  void key_sums(const float* tile, int64_t stride, int64_t rows, int64_t keys, int64_t dim, const Packed* x, Packed*,
                float* total, int64_t first, int64_t, bool accumulate) {
    weighted_sum(keys, rows, dim, {tile, 1, stride}, x, 0, total + first * dim, accumulate);
  }
  static int64_t key_sums_size(int64_t keys, int64_t dim) { return keys * dim; }
  // kLanes rows of the sums, from key `first` on.
  static float* key_sum_rows(float* total, int64_t first, int64_t, int64_t dim, float*) { return total + first * dim; }
};

}  // namespace QACG_ISA

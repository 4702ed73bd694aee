// Products of bfloat16 operands with float32 sums. Right operands are packed in VNNI pairs: two consecutive rows
// interleaved.
#pragma once

#include "gemm_bf16.h"
#include "pack.h"
#include "prefetch.h"
#include "problem.h"

namespace QACG_ISA {

struct Bfloat16Engine {
  using Scalar = HalfBits;
  using Packed = HalfBits;
  struct Left {
    const HalfBits* data;
    int64_t stride;
  };
  static constexpr bool kSumsPairs = true;  // also in the engine for few queries or keys
  static constexpr int64_t kKeyStep = 32;
  static constexpr int64_t kRowStep = 1;
  static constexpr int64_t kRowBlock = 64;
  static constexpr int64_t kWholeRowKeys = 2048;
  static constexpr int64_t kColumns = 128;  // of scores per product, and the panel width
  static constexpr int64_t kDepth = 128;  // of a sum per product
  static constexpr int64_t kRows = 64;  // of a left operand per product

  explicit Bfloat16Engine(const qacg::Problem&) {}

  Prefetch prefetch;  // of the caller's tensors
  Stream keys_ahead;  // packed keys that are out of the cache
  // Calls of prefetch.step() in one row block, for these numbers of score products, sums over keys and sums over rows.
  static int64_t steps(int64_t keys, int64_t, int64_t scores, int64_t key_sums, int64_t row_sums) {
    return (keys + kColumns - 1) / kColumns * scores + (keys + kDepth - 1) / kDepth * key_sums +
           (keys + kRows - 1) / kRows * row_sums;
  }

  static int64_t padded_dim(int64_t head_dim) { return round_up(head_dim, 32); }
  static int64_t panels_size(int64_t keys, int64_t dim) { return round_up(keys, kColumns) * dim; }
  static int64_t rows_size(int64_t rows, int64_t dim) { return round_up(rows, kKeyStep) * dim; }
  static int64_t pack_left_size(int64_t rows, int64_t dim) { return round_up(rows, kRowStep) * dim; }
  static int64_t left_size(int64_t rows, int64_t cols) { return round_up(rows, kRowStep) * round_up(cols, kKeyStep); }

  static void pack_panels(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to) {
    const int64_t dim = padded_dim(head_dim);
    for (int64_t n = 0; n < round_up(rows, kKeyStep); n += kLanes) {
      Packed* panel = to + n / kColumns * kColumns * dim + n % kColumns * 2;
      for (int64_t d = 0; d < dim; d += 2 * kLanes) {
        Vec block[kLanes];
#pragma GCC unroll 16
        for (int64_t i = 0; i < kLanes; ++i) {
          block[i] = n + i < rows ? pairs_of(from + (n + i) * stride, d, head_dim) : Vec{};
        }
        transpose(block);
#pragma GCC unroll 16
        for (int64_t i = 0; i < kLanes; ++i) {
          memcpy(panel + (d / 2 + i) * kColumns * 2, &block[i], sizeof(Vec));
        }
      }
    }
  }

  static void pack_rows(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to) {
    const int64_t dim = padded_dim(head_dim);
    for (int64_t i = 0; i < round_up(rows, kKeyStep); i += 2) {
      Packed* pair = to + i * dim;
      const Scalar* even = from + i * stride;
      const Scalar* odd = even + stride;
      const bool has_even = i < rows, has_odd = i + 1 < rows;
      int64_t d = 0;
      if (has_odd) {
        for (; d + kLanes <= head_dim; d += kLanes) store_joined(even + d, odd + d, pair + 2 * d);
      }
      for (; d < dim; ++d) {
        const bool inside = d < head_dim;
        pair[2 * d] = inside && has_even ? even[d] : 0;
        pair[2 * d + 1] = inside && has_odd ? odd[d] : 0;
      }
    }
  }

  static void pack_summed(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to) {
    pack_rows(from, stride, rows, head_dim, to);
  }

  // `rows` rows as the left operand of scores; rows of whole pairs of registers are not copied.
  static Left pack_left(const Scalar* from, int64_t stride, int64_t rows, int64_t head_dim, Packed* to) {
    const int64_t dim = padded_dim(head_dim);
    if (head_dim == dim) return {from, stride};
    for (int64_t i = 0; i < rows; ++i) {
      Packed* row = to + i * dim;
      memcpy(row, from + i * stride, head_dim * sizeof(Packed));
      memset(row + head_dim, 0, (dim - head_dim) * sizeof(Packed));
    }
    return {to, dim};
  }

  static constexpr bool kPacksTiles = true;
  template <typename F>
  static QACG_INLINE void put_row(float*, Packed* left, int64_t r, int64_t seen, int64_t cols, const F& f) {
    Packed* row = left + r * cols;
    int64_t j = 0;
    for (; j + kKeyStep <= seen; j += kKeyStep) store_both(row + j, f(j, kAllLanes), f(j + kLanes, kAllLanes));
    if (j < seen) {
      const IntVec low = lanes_below(seen - j), high = lanes_below(seen - j - kLanes);
      store_both(row + j, f(j, low), keep_where(high, f(j + kLanes, high)));
      j += kKeyStep;
    }
    if (j < cols) memset(row + j, 0, (cols - j) * sizeof(Packed));
  }
  static Left put_rows(const float*, int64_t, Packed* left, int64_t, int64_t cols) { return {left, cols}; }

  static Left left(const float* tile, int64_t stride, int64_t rows, int64_t cols, Packed* to) {
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = tile + r * stride;
      for (int64_t j = 0; j < cols; j += kKeyStep) store_both(to + r * cols + j, load(row + j), load(row + j + kLanes));
    }
    return {to, cols};
  }

  // Rows of the operand are columns of the tile: rows i and i + 1 of it become pairs, and squares of kLanes pairs are
  // transposed.
  static Left left_transposed(const float* tile, int64_t stride, int64_t rows, int64_t cols, Packed* to) {
    const int64_t depth = round_up(rows, kKeyStep);
    alignas(64) HalfBits interleaved[2 * kLanes];
    for (int l = 0; l < 2 * kLanes; ++l) interleaved[l] = l % 2 * kLanes + l / 2;
    const __m512i order = _mm512_load_si512(interleaved);
    for (int64_t r = 0; r < depth; r += 2 * kLanes) {
      for (int64_t j = 0; j < cols; j += kLanes) {
        Vec block[kLanes];
#pragma GCC unroll 16
        for (int64_t i = 0; i < kLanes; ++i) {
          const int64_t row = r + 2 * i;
          const Vec even = row < rows ? load(tile + row * stride + j) : Vec{};
          const Vec odd = row + 1 < rows ? load(tile + (row + 1) * stride + j) : Vec{};
          block[i] = (Vec)_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even));
        }
        transpose(block);
#pragma GCC unroll 16
        for (int64_t i = 0; i < kLanes; ++i) memcpy(to + (j + i) * depth + r, &block[i], sizeof(Vec));
      }
    }
    return {to, depth};
  }

  static constexpr bool kTakesLargest = false;
  void scores(int64_t rows, int64_t cols, int64_t dim, Left a, const Packed* panels, int64_t first, float* c,
              int64_t c_stride) {
    // A span starts at a multiple of kColumns.
    const Packed* b = panels + first * dim;
    for (int64_t n = 0; n < cols; n += kColumns) {
      pair_product(rows, smaller(kColumns, cols - n), dim, a.data, a.stride, b + n * dim, kColumns, c + n, c_stride,
                   /*accumulate=*/false);
      prefetch.step();
    }
  }

  void weighted_sum(int64_t rows, int64_t depth, int64_t dim, Left a, const Packed* packed, int64_t first, float* c,
                    bool accumulate) {
    depth = round_up(depth, kKeyStep);
    for (int64_t m = 0; m < rows; m += kRows) {
      const int64_t take = smaller(kRows, rows - m);
      for (int64_t k = 0; k < depth; k += kDepth) {
        pair_product(take, dim, smaller(kDepth, depth - k), a.data + m * a.stride + k, a.stride,
                     packed + (first + k) * dim, dim, c + m * dim, dim, accumulate || k > 0);
        prefetch.step();
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
};

}  // namespace QACG_ISA

// Small float32 matrix products with sums in registers.
//
// C (M x N) = or += A (M x K) B (K x N). A is read one element at a time and broadcast, so A may have any strides, and
// a transposed A takes no more time. (On aarch64, see sums_neon.h.) B is read by registers along N: either rows of a
// padded matrix, or panels, a layout in which kPanel columns are adjacent, K deep. N is always a multiple of the
// register width.
#pragma once

#include "prefetch.h"
#if defined(__aarch64__)
#include "sums_neon.h"
#endif

namespace QACG_ISA {

// Register block: kBlockRows x kBlockVecs accumulators, the B row and one broadcast fit the register file.
#if defined(__aarch64__)
// Each row of A also takes a register, with four steps of the depth: see sums_neon.h.
constexpr int kBlockVecs = 2;
constexpr int kBlockRows = 8;
#else
constexpr int kBlockVecs = kRegisters == 32 ? 4 : 2;
constexpr int kBlockRows = 6;
#endif
constexpr int kPanel = kBlockVecs * kLanes;
// Rows of B per pass over A: this slice of B stays in the first-level cache while all rows of A use it.
constexpr int64_t kDepth = 128;

struct Left {
  const float* data;
  int64_t row_stride;
  int64_t col_stride;
};

template <int kRows, int kVecs>
QACG_INLINE void block_product(int64_t depth, Left a, const float* b, int64_t b_stride, float* c, int64_t c_stride,
                               bool accumulate) {
  Vec acc[kRows][kVecs];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) acc[m][v] = Vec{};
#if defined(__aarch64__)
  add_products(acc, depth, a.data, a.row_stride, a.col_stride, b, b_stride);
#else
  const float* a_row[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) a_row[m] = a.data + m * a.row_stride;
  for (int64_t k = 0; k < depth; ++k) {
    Vec b_row[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) b_row[v] = load(b + k * b_stride + v * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const Vec x = splat(a_row[m][k * a.col_stride]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) acc[m][v] += x * b_row[v];
    }
  }
#endif
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      // Added at the end instead of the start: summing kDepth terms first, and then these sums, has smaller rounding
      // errors than one long sum.
      float* to = c + m * c_stride + v * kLanes;
      store(to, accumulate ? load(to) + acc[m][v] : acc[m][v]);
    }
}

template <int kVecs>
void column_product(Prefetch& prefetch, int64_t rows, int64_t depth, Left a, const float* b, int64_t b_stride, float* c,
                    int64_t c_stride, bool accumulate) {
  // Rows are distributed evenly, because five and five keep the units busier than six and four.
  int64_t groups = (rows + kBlockRows - 1) / kBlockRows;
  for (; rows > 0; --groups) {
    const int64_t take = (rows + groups - 1) / groups;
    switch (take) {
#if defined(__aarch64__)
      case 8:
        block_product<8, kVecs>(depth, a, b, b_stride, c, c_stride, accumulate);
        break;
      case 7:
        block_product<7, kVecs>(depth, a, b, b_stride, c, c_stride, accumulate);
        break;
#endif
      case 6:
        block_product<6, kVecs>(depth, a, b, b_stride, c, c_stride, accumulate);
        break;
      case 5:
        block_product<5, kVecs>(depth, a, b, b_stride, c, c_stride, accumulate);
        break;
      case 4:
        block_product<4, kVecs>(depth, a, b, b_stride, c, c_stride, accumulate);
        break;
      case 3:
        block_product<3, kVecs>(depth, a, b, b_stride, c, c_stride, accumulate);
        break;
      case 2:
        block_product<2, kVecs>(depth, a, b, b_stride, c, c_stride, accumulate);
        break;
      default:
        block_product<1, kVecs>(depth, a, b, b_stride, c, c_stride, accumulate);
        break;
    }
    prefetch.step();
    a.data += take * a.row_stride;
    c += take * c_stride;
    rows -= take;
  }
}

inline void columns_product(Prefetch& prefetch, int64_t vecs, int64_t rows, int64_t depth, Left a, const float* b,
                            int64_t b_stride, float* c, int64_t c_stride, bool accumulate) {
  switch (vecs) {
    case 1:
      column_product<1>(prefetch, rows, depth, a, b, b_stride, c, c_stride, accumulate);
      break;
    case 2:
      column_product<2>(prefetch, rows, depth, a, b, b_stride, c, c_stride, accumulate);
      break;
#if defined(__AVX512F__)
    case 3:
      column_product<3>(prefetch, rows, depth, a, b, b_stride, c, c_stride, accumulate);
      break;
    default:
      column_product<4>(prefetch, rows, depth, a, b, b_stride, c, c_stride, accumulate);
      break;
#endif
  }
}

// B in panels (see pack_panels); `cols` columns from column 0 of `b`, which must begin a panel. More than kDepth terms
// are summed in short slices: the rounding of one long sum, with a large common score, gave dQ 9 times eager's error.
inline void product_panels(Prefetch& prefetch, int64_t rows, int64_t cols, int64_t depth, Left a, const float* b,
                           float* c, int64_t c_stride) {
  const int64_t most = depth > kDepth ? kDepth / 2 : kDepth;
  for (int64_t n = 0; n < cols; n += kPanel) {
    const int64_t vecs = smaller(kPanel, cols - n) / kLanes;
    for (int64_t k = 0; k < depth; k += most) {
      columns_product(prefetch, vecs, rows, smaller(most, depth - k),
                      {a.data + k * a.col_stride, a.row_stride, a.col_stride}, b + n * depth + k * kPanel, kPanel,
                      c + n, c_stride, k > 0);
    }
  }
}

// B in rows of `b_stride` floats.
inline void product_rows(Prefetch& prefetch, int64_t rows, int64_t cols, int64_t depth, Left a, const float* b,
                         int64_t b_stride, float* c, int64_t c_stride, bool accumulate) {
  for (int64_t k = 0; k < depth; k += kDepth) {
    const int64_t slice = smaller(kDepth, depth - k);
    for (int64_t n = 0; n < cols; n += kPanel) {
      const int64_t vecs = smaller(kPanel, cols - n) / kLanes;
      columns_product(prefetch, vecs, rows, slice, {a.data + k * a.col_stride, a.row_stride, a.col_stride},
                      b + k * b_stride + n, b_stride, c + n, c_stride, accumulate || k > 0);
    }
  }
}

}  // namespace QACG_ISA

// The inner loop of float32 products on aarch64: multiply-adds with one lane of a register, so that one load of A
// serves four steps or four rows. A broadcasting load would serve one.
#pragma once

#include "vec.h"

namespace QACG_ISA {

// acc += x[lane] * b: one row of accumulators, one step of the depth.
template <int kVecs>
QACG_INLINE void add_by_lane(Vec (&acc)[kVecs], float x, const Vec (&b)[kVecs]) {
#pragma GCC unroll 4
  for (int v = 0; v < kVecs; ++v) acc[v] += x * b[v];
}

template <int kVecs>
QACG_INLINE void load_row(const float* from, Vec (&row)[kVecs]) {
#pragma GCC unroll 4
  for (int v = 0; v < kVecs; ++v) row[v] = load(from + v * kLanes);
}

// Rows of A that run along the depth.
template <int kRows, int kVecs>
QACG_INLINE void add_along_rows(Vec (&acc)[kRows][kVecs], int64_t depth, const float* a, int64_t row_stride,
                                const float* b, int64_t b_stride) {
  int64_t k = 0;
  for (; k + kLanes <= depth; k += kLanes) {
    Vec x[kRows];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) x[m] = load(a + m * row_stride + k);
#pragma GCC unroll 4
    for (int lane = 0; lane < kLanes; ++lane) {
      Vec row[kVecs];
      load_row(b + (k + lane) * b_stride, row);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) add_by_lane(acc[m], x[m][lane], row);
    }
  }
  for (; k < depth; ++k) {
    Vec row[kVecs];
    load_row(b + k * b_stride, row);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) add_by_lane(acc[m], a[m * row_stride + k], row);
  }
}

// Rows of A that are adjacent: at each step they are a column.
template <int kRows, int kVecs>
QACG_INLINE void add_side_by_side(Vec (&acc)[kRows][kVecs], int64_t depth, const float* a, int64_t col_stride,
                                  const float* b, int64_t b_stride) {
  for (int64_t k = 0; k < depth; ++k) {
    Vec row[kVecs];
    load_row(b + k * b_stride, row);
    const float* column = a + k * col_stride;
    constexpr int kWhole = kRows / kLanes * kLanes;
#pragma GCC unroll 2
    for (int m = 0; m < kWhole; m += kLanes) {
      const Vec x = load(column + m);
#pragma GCC unroll 4
      for (int lane = 0; lane < kLanes; ++lane) add_by_lane(acc[m + lane], x[lane], row);
    }
    if constexpr (kRows - kWhole == 2) {
      const float32x2_t x = vld1_f32(column + kWhole);
      add_by_lane(acc[kWhole], x[0], row);
      add_by_lane(acc[kWhole + 1], x[1], row);
    } else {
#pragma GCC unroll 4
      for (int m = kWhole; m < kRows; ++m) add_by_lane(acc[m], column[m], row);
    }
  }
}

// acc += A B for kRows rows of A and kVecs registers of each row of B; one of A's strides is 1.
template <int kRows, int kVecs>
QACG_INLINE void add_products(Vec (&acc)[kRows][kVecs], int64_t depth, const float* a, int64_t row_stride,
                              int64_t col_stride, const float* b, int64_t b_stride) {
  if (col_stride == 1) {
    add_along_rows(acc, depth, a, row_stride, b, b_stride);
  } else {
    add_side_by_side(acc, depth, a, col_stride, b, b_stride);
  }
}

}  // namespace QACG_ISA

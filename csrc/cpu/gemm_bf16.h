// Small products of bfloat16 matrices with float32 sums in registers, by vdpbf16ps: two terms of a sum at a time.
//
// C (M x N) = or += A (M x K) B (K x N). A is in rows, B in VNNI pairs: rows 2k and 2k + 1 interleaved. K is even and N
// a multiple of the register width.
#pragma once

#include "pack.h"

namespace QACG_ISA {

// Register block: kPairRows x kPairVecs accumulators, kPairVecs registers of B and one broadcast of A.
constexpr int kPairRows = 6;
constexpr int kPairVecs = 4;

template <int kRows, int kVecs>
QACG_INLINE void pair_block(int64_t depth, const HalfBits* a, int64_t a_stride, const HalfBits* b, int64_t b_stride,
                            float* c, int64_t c_stride, bool accumulate) {
  __m512 acc[kRows][kVecs];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) acc[m][v] = _mm512_setzero_ps();
  for (int64_t k = 0; k < depth; k += 2) {
    __m512bh b_row[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      b_row[v] = (__m512bh)_mm512_loadu_si512(b + k * b_stride + v * 2 * kLanes);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      int32_t pair;
      memcpy(&pair, a + m * a_stride + k, sizeof(pair));
      const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) acc[m][v] = _mm512_dpbf16_ps(acc[m][v], x, b_row[v]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      float* to = c + m * c_stride + v * kLanes;
      store(to, accumulate ? load(to) + (Vec)acc[m][v] : (Vec)acc[m][v]);
    }
}

template <int kVecs>
void pair_columns(int64_t rows, int64_t depth, const HalfBits* a, int64_t a_stride, const HalfBits* b, int64_t b_stride,
                  float* c, int64_t c_stride, bool accumulate) {
  // Rows are distributed evenly, because five and five keep the units busier than six and four.
  int64_t groups = (rows + kPairRows - 1) / kPairRows;
  for (; rows > 0; --groups) {
    const int64_t take = (rows + groups - 1) / groups;
    switch (take) {
      case 6:
        pair_block<6, kVecs>(depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
        break;
      case 5:
        pair_block<5, kVecs>(depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
        break;
      case 4:
        pair_block<4, kVecs>(depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
        break;
      case 3:
        pair_block<3, kVecs>(depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
        break;
      case 2:
        pair_block<2, kVecs>(depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
        break;
      default:
        pair_block<1, kVecs>(depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
        break;
    }
    a += take * a_stride;
    c += take * c_stride;
    rows -= take;
  }
}

// Strides are in elements; pairs of rows of B are 2 b_stride apart.
inline void pair_product(int64_t rows, int64_t cols, int64_t depth, const HalfBits* a, int64_t a_stride,
                         const HalfBits* b, int64_t b_stride, float* c, int64_t c_stride, bool accumulate) {
  for (int64_t n = 0; n < cols; n += kPairVecs * kLanes) {
    const HalfBits* from = b + 2 * n;
    float* to = c + n;
    switch (smaller(kPairVecs, (cols - n) / kLanes)) {
      case 1:
        pair_columns<1>(rows, depth, a, a_stride, from, b_stride, to, c_stride, accumulate);
        break;
      case 2:
        pair_columns<2>(rows, depth, a, a_stride, from, b_stride, to, c_stride, accumulate);
        break;
      case 3:
        pair_columns<3>(rows, depth, a, a_stride, from, b_stride, to, c_stride, accumulate);
        break;
      default:
        pair_columns<4>(rows, depth, a, a_stride, from, b_stride, to, c_stride, accumulate);
        break;
    }
  }
}

}  // namespace QACG_ISA

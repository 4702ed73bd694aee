// Tiles of 16-bit rows in the layout that wgmma reads: consecutive panels of 64 dims. Each panel is a Tile<64>, whose
// layout is the 128-byte swizzle.
#pragma once

#include "mma_strip.h"
#include "wgmma.h"

namespace qacg::cuda::mma {

template <int kWidth, int kRows>
struct Panels {
  static_assert(kWidth % 64 == 0 && kRows % 8 == 0);
  static constexpr int kDim = kWidth, kPitch = Tile<64>::kPitch, kChunks = kDim / kChunk;
  static constexpr uint32_t kBytes = kRows * kPitch;  // of a panel
  uint32_t address;

  QACG_DEVICE Tile<64> panel(int n) const { return {address + n * kBytes}; }
  QACG_DEVICE uint32_t at(int row, int chunk) const { return panel(chunk / 8).at(row, chunk % 8); }

  // Offset of dims 16 k to 16 k + 15, which the product sums over; `row` is a multiple of 8.
  QACG_DEVICE static uint32_t dims(int k) { return k / 4 * kBytes + k % 4 * 32; }
  QACG_DEVICE uint64_t along_the_sum(int row) const { return matrix_descriptor(address + row * kPitch, 0, kAtomBytes); }

  // Offset of rows 16 k to 16 k + 15, which the product sums over, with all dims.
  QACG_DEVICE static uint32_t rows(int k) { return k * 16 * kPitch; }
  QACG_DEVICE uint64_t across_the_sum() const { return matrix_descriptor(address, kBytes, kAtomBytes); }
};

// scores = 64 rows of `left` from left_row, a multiple of 8, times all rows of `right`.
template <typename Scalar, int kTiles, int kDim, int kLeftRows, int kRows>
QACG_DEVICE void begin_scores(float (&scores)[kTiles][4], const Panels<kDim, kLeftRows>& left, int left_row,
                              const Panels<kDim, kRows>& right) {
  static_assert(8 * kTiles == kRows);
  const uint64_t from_left = left.along_the_sum(left_row), from_right = right.along_the_sum(0);
  multiply(scores, from_left, from_right, Scalar{});
#pragma unroll
  for (int k = 1; k < kDim / 16; ++k) {
    multiply_add(scores, advanced(from_left, left.dims(k)), advanced(from_right, right.dims(k)), Scalar{});
  }
  commit_products();
}

// sums += weights (64 rows by 16 kSteps columns) times all rows of `right`.
template <typename Scalar, int kTiles, int kSteps, int kDim, int kRows>
QACG_DEVICE void begin_weighted(float (&sums)[kTiles][4], const uint32_t (&weights)[kSteps][4],
                                const Panels<kDim, kRows>& right) {
  static_assert(8 * kTiles == kDim && 16 * kSteps == kRows);
  const uint64_t from_right = right.across_the_sum();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) multiply_add(sums, weights[k], advanced(from_right, right.rows(k)), Scalar{});
  commit_products();
}

}  // namespace qacg::cuda::mma

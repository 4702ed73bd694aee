// The arithmetic of one tensor-core instruction on float32 sums of products of 16-bit elements.
//
// NVIDIA does not document its rounding. QACG_EMULATOR_ROUNDING selects one: "float32", the default, rounds every
// addition to nearest; "truncate" follows experiments (Fasi, Higham, Mikaitis and Pranesh, Numerical behavior of NVIDIA
// tensor cores, PeerJ Computer Science 2021, on V100, T4 and A100): products are exact; a sum and the products that are
// added in one step are shifted to the largest exponent among them, and lower bits are truncated, not rounded; bits of
// their sum beyond the 24 of a float32 are truncated too.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

namespace qacg::cuda::emulator {

constexpr int kDepth = 16;  // of a product
// Products that are added in one step, and bits that addends keep beyond the 24 of the largest: those of an A100, which
// truncates more, and more often, than newer GPUs.
constexpr int kAddedAtATime = 8, kExtraBits = 1;

// x truncated to float32.
inline float truncated(double x) {
  const float nearest = static_cast<float>(x);
  return fabs(static_cast<double>(nearest)) > fabs(x) ? nextafterf(nearest, 0.0f) : nearest;
}

inline float add_truncated(float sum, const double* products) {
  double addends[kAddedAtATime + 1] = {sum};
  std::copy(products, products + kAddedAtATime, addends + 1);
  double largest = 0.0;
  for (const double x : addends) {
    if (!isfinite(x)) {
      double all = 0.0;
      for (const double y : addends) all += y;
      return static_cast<float>(all);
    }
    largest = std::max(largest, fabs(x));
  }
  if (largest == 0.0) return 0.0f;
  // The last bit that an addend keeps.
  const double last = ldexp(1.0, ilogb(largest) - 23 - kExtraBits), per_last = 1.0 / last;
  int64_t units = 0;
  for (const double x : addends) units += static_cast<int64_t>(x * per_last);
  return truncated(static_cast<double>(units) * last);
}

inline bool truncates() {
  const char* value = getenv("QACG_EMULATOR_ROUNDING");
  if (!value || strcmp(value, "float32") == 0) return false;
  if (strcmp(value, "truncate") == 0) return true;
  fprintf(stderr, "QACG_EMULATOR_ROUNDING: expected float32 or truncate, got %s\n", value);
  abort();
}

// sums += left right.
inline void add_product(float (&sums)[16][8], const float (&left)[16][kDepth], const float (&right)[kDepth][8],
                        bool truncate) {
  if (!truncate) {
    float products[16][8] = {};
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < kDepth; ++k) {
        for (int j = 0; j < 8; ++j) products[i][j] += left[i][k] * right[k][j];
      }
      for (int j = 0; j < 8; ++j) sums[i][j] += products[i][j];
    }
    return;
  }
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      double products[kDepth];
      for (int k = 0; k < kDepth; ++k) products[k] = static_cast<double>(left[i][k]) * static_cast<double>(right[k][j]);
      for (int k = 0; k < kDepth; k += kAddedAtATime) sums[i][j] = add_truncated(sums[i][j], products + k);
    }
  }
}

}  // namespace qacg::cuda::emulator

// The online softmax and the end of a forward, which all CUDA forwards share: equations 3, 6 and 8 of MATH.md.
#pragma once

#include "sequence.h"

namespace qacg::cuda {

// The softmax of one row of scores over the keys read so far. Scores are exponents of 2.
struct OnlineSoftmax {
  float maximum = -INFINITY, sum = 0.0f;

  // The number that is subtracted from scores. While no key is visible, all scores are -inf, and a shift of 0 avoids
  // NaN.
  QACG_DEVICE float shift() const { return maximum == -INFINITY ? 0.0f : maximum; }

  // Includes a tile's largest score. Returns the factor for all sums over earlier tiles.
  template <typename Math>
  QACG_DEVICE float raise_maximum(float tile_maximum) {
    const float before = maximum;
    maximum = fmaxf(before, tile_maximum);
    const float rescale = Math::exp2(before - shift());
    sum *= rescale;
    return rescale;
  }

  // The factor that turns exponentials into P.
  QACG_DEVICE float normalise() const { return softmax_row(maximum, sum).normalise; }

  // Stores what the backward reads of row i: zeros for a row without visible keys.
  QACG_DEVICE void store(const Problem& p, const Sequence& s, int i) const {
    at(p.row_max, s, i) = shift();
    at(p.row_sum, s, i) = sum;
  }
};

}  // namespace qacg::cuda

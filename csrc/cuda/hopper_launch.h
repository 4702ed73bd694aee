// Launches of the Hopper path for one 16-bit type: a head size is padded to 64 or 128.
#pragma once

#include "find_wgmma.h"
#include "hopper_forward.h"
#include "kernels.h"

namespace qacg::cuda::mma {

// What a block may have on a GPU with these instructions.
constexpr int64_t kSharedOfSm90 = 227 * 1024;

template <typename Scalar, int kDim>
const char* run_hopper_forward_of(const Problem& p, void* stream) {
  using Shape = HopperShape<kDim>;
  static_assert(Shape::kShared <= kSharedOfSm90);
  return launch(hopper_forward<Scalar, kDim>, unit_count(p, p.query_length, Shape::kRows), Shape::kThreads,
                Shape::kShared, stream, p);
}

template <typename Scalar>
const char* run_hopper_forward(const Problem& p, void* stream, bool* taken) {
  const char* error = find_wgmma(taken);
  if (error || !*taken) return error;
  return p.head_dim <= 64 ? run_hopper_forward_of<Scalar, 64>(p, stream)
                          : run_hopper_forward_of<Scalar, 128>(p, stream);
}

}  // namespace qacg::cuda::mma

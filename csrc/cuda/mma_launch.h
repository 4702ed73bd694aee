// Launches of the forward and backward for one 16-bit type. Head sizes are padded to 32, 64 or 128.
#pragma once

#include <type_traits>

#include "kernels.h"
#include "mma_backward_keys.h"
#include "mma_backward_rows.h"
#include "mma_forward.h"
#include "mma_forward_short.h"

namespace qacg::cuda {
namespace mma {

// The least shared memory that a block can have on the supported GPUs: that of 8.6, 8.9 and 12.0.
constexpr int64_t kSharedEverywhere = 99 * 1024;

// Calls run(padded head size as an integral_constant).
template <typename Run>
const char* with_padded_dim(const Problem& p, const Run& run) {
  if (p.head_dim <= 32) return run(std::integral_constant<int, 32>{});
  if (p.head_dim <= 64) return run(std::integral_constant<int, 64>{});
  return run(std::integral_constant<int, 128>{});
}

}  // namespace mma

template <typename Scalar>
const char* run_forward(const Problem& p, void* stream) {
  return mma::with_padded_dim(p, [&](auto dim) -> const char* {
    constexpr int kDim = decltype(dim)::value;
    const auto run = [&](auto kernel, auto shape) {
      using Shape = decltype(shape);
      static_assert(Shape::kShared <= mma::kSharedEverywhere);
      return launch(kernel, unit_count(p, p.query_length, Shape::kRows), Shape::kThreads, Shape::kShared, stream, p);
    };
    if constexpr (kDim <= mma::kMostShortDims) {
      if (p.key_length <= mma::kShortKeys && !p.softmax_out.data) {
        return run(mma::forward_short<Scalar, kDim>, mma::ShortShape<kDim>{});
      }
    }
    return run(mma::forward<Scalar, kDim>, mma::ForwardShape<kDim>{});
  });
}

template <typename Scalar>
const char* run_backward(const Problem& p, const Gradients& g, void* stream) {
  return mma::with_padded_dim(p, [&](auto dim) -> const char* {
    constexpr int kDim = decltype(dim)::value;
    using Rows = mma::RowsShape<kDim>;
    static_assert(Rows::kShared <= mma::kSharedEverywhere);
    const char* error = launch(mma::backward_rows<Scalar, kDim>, unit_count(p, p.query_length, Rows::kRows),
                               Rows::kThreads, Rows::kShared, stream, p, g);
    if (error) return error;
    const auto run = [&](auto kernel, auto shape) {
      using Shape = decltype(shape);
      return launch(kernel, unit_count(p, p.key_length, Shape::kKeys), Shape::kThreads, Shape::kShared, stream, p, g);
    };
    if constexpr (mma::KeysShape<kDim>::kShared > mma::kSharedEverywhere) {
      using Narrow = mma::NarrowKeysShape<kDim>;
      static_assert(Narrow::kShared <= mma::kSharedEverywhere);
      int64_t limit = 0;
      error = shared_memory_limit(&limit);
      if (error) return error;
      if (mma::KeysShape<kDim>::kShared > limit) return run(mma::narrow_backward_keys<Scalar, kDim>, Narrow{});
    }
    return run(mma::backward_keys<Scalar, kDim>, mma::KeysShape<kDim>{});
  });
}

}  // namespace qacg::cuda

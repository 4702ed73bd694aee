// Launches of the forward and backward for one 16-bit type. Head sizes are padded to 32, 64 or 128.
#pragma once

#include <type_traits>

#include "kernels.h"
#include "mma_backward_keys.h"
#include "mma_backward_rows.h"
#include "mma_forward.h"
#include "mma_forward_short.h"

namespace qacg::cuda {

// Calls run(padded head size as an integral_constant).
template <typename Run>
const char* with_padded_dim(const Problem& p, const Run& run) {
  if (p.head_dim <= 32) return run(std::integral_constant<int, 32>{});
  if (p.head_dim <= 64) return run(std::integral_constant<int, 64>{});
  return run(std::integral_constant<int, 128>{});
}

template <typename Scalar>
const char* run_forward(const Problem& p, void* stream) {
  return with_padded_dim(p, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    if constexpr (kDim <= mma::kMostShortDims) {
      using Shape = mma::ShortShape<Scalar, kDim>;
      if (p.key_length <= mma::kShortKeys && !p.softmax_out.data) {
        return launch<mma::forward_short<Scalar, kDim>, Shape>(unit_count(p, p.query_length, Shape::kRows), stream, p);
      }
    }
    using Shape = mma::ForwardShape<Scalar, kDim>;
    return launch<mma::forward<Scalar, kDim>, Shape>(unit_count(p, p.query_length, Shape::kRows), stream, p);
  });
}

template <typename Scalar>
const char* run_backward(const Problem& p, const Gradients& g, void* stream) {
  return with_padded_dim(p, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    using Rows = mma::RowsShape<Scalar, kDim>;
    using Keys = mma::KeysShape<kDim>;
    const char* error =
        launch<mma::backward_rows<Scalar, kDim>, Rows>(unit_count(p, p.query_length, Rows::kRows), stream, p, g);
    if (error) return error;
    return launch<mma::backward_keys<Scalar, kDim>, Keys>(unit_count(p, p.key_length, Keys::kKeys), stream, p, g);
  });
}

}  // namespace qacg::cuda

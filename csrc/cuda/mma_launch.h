// Launches of the tensor-core path for one 16-bit type: a head size is padded to 32, 64 or 128.
#pragma once

#include <type_traits>

#include "kernels.h"
#include "mma_backward_keys.h"
#include "mma_backward_rows.h"
#include "mma_forward.h"
#include "mma_forward_short.h"

namespace qacg::cuda::mma {

// Calls run(a type with the padded head size as its value) for the head size of a problem.
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
    if (p.key_length <= kShortKeys && !p.softmax_out.data) {
      using Shape = ShortShape<kDim>;
      return launch(forward_short<Scalar, kDim>, unit_count(p, p.query_length, Shape::kRows), Shape::kThreads,
                    Shape::kShared, stream, p);
    }
    using Shape = ForwardShape<kDim>;
    return launch(forward<Scalar, kDim>, unit_count(p, p.query_length, Shape::kRows), Shape::kThreads, Shape::kShared,
                  stream, p);
  });
}

template <typename Scalar>
const char* run_backward(const Problem& p, const Gradients& g, void* stream) {
  return with_padded_dim(p, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    const char* error = launch(backward_rows<Scalar, kDim>, unit_count(p, p.query_length, RowsShape<kDim>::kRows),
                               RowsShape<kDim>::kThreads, RowsShape<kDim>::kShared, stream, p, g);
    if (error) return error;
    return launch(backward_keys<Scalar, kDim>, unit_count(p, p.key_length, KeysShape<kDim>::kKeys),
                  KeysShape<kDim>::kThreads, KeysShape<kDim>::kShared, stream, p, g);
  });
}

}  // namespace qacg::cuda::mma

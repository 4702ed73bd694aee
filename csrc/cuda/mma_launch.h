// Launches of the tensor-core path for one 16-bit type. Head sizes are padded to 32, 64 or 128.
#pragma once

#include <type_traits>

#include "kernels.h"
#include "mma_backward_keys.h"
#include "mma_backward_rows.h"
#include "mma_forward.h"
#include "mma_forward_short.h"

namespace qacg::cuda::mma {

// Shared memory per block on sm_80, for which these kernels are sized.
constexpr int64_t kSharedOfSm80 = 163 * 1024;

// Calls run(padded head size as an integral_constant, shared memory limit in bytes).
template <typename Run>
const char* with_padded_dim(const Problem& p, const Run& run) {
  int64_t limit = 0;
  const char* error = shared_memory_limit(&limit);
  if (error) return error;
  if (p.head_dim <= 32) return run(std::integral_constant<int, 32>{}, limit);
  if (p.head_dim <= 64) return run(std::integral_constant<int, 64>{}, limit);
  return run(std::integral_constant<int, 128>{}, limit);
}

template <typename Scalar>
const char* run_forward(const Problem& p, void* stream, bool* launched) {
  return with_padded_dim(p, [&](auto dim, int64_t limit) -> const char* {
    constexpr int kDim = decltype(dim)::value;
    const auto run = [&](auto kernel, auto shape) -> const char* {
      using Shape = decltype(shape);
      static_assert(Shape::kShared <= kSharedOfSm80);
      *launched = Shape::kShared <= limit;
      if (!*launched) return nullptr;
      return launch(kernel, unit_count(p, p.query_length, Shape::kRows), Shape::kThreads, Shape::kShared, stream, p);
    };
    if constexpr (kDim <= kMostShortDims) {
      if (p.key_length <= kShortKeys && !p.softmax_out.data) {
        const char* error = run(forward_short<Scalar, kDim>, ShortShape<kDim>{});
        if (*launched || error) return error;
      }
    }
    return run(forward<Scalar, kDim>, ForwardShape<kDim>{});
  });
}

template <typename Scalar>
const char* run_backward(const Problem& p, const Gradients& g, void* stream, bool* launched) {
  return with_padded_dim(p, [&](auto dim, int64_t limit) -> const char* {
    constexpr int kDim = decltype(dim)::value;
    using Rows = RowsShape<kDim>;
    using Keys = KeysShape<kDim>;
    static_assert(Rows::kShared <= kSharedOfSm80 && Keys::kShared <= kSharedOfSm80);
    const auto run = [&](auto keys_kernel, auto keys_shape) -> const char* {
      using Shape = decltype(keys_shape);
      *launched = Rows::kShared <= limit && Shape::kShared <= limit;
      if (!*launched) return nullptr;
      const char* error = launch(backward_rows<Scalar, kDim>, unit_count(p, p.query_length, Rows::kRows),
                                 Rows::kThreads, Rows::kShared, stream, p, g);
      if (error) return error;
      return launch(keys_kernel, unit_count(p, p.key_length, Shape::kKeys), Shape::kThreads, Shape::kShared, stream, p,
                    g);
    };
    const char* error = run(backward_keys<Scalar, kDim>, Keys{});
    if constexpr (kDim >= 64) {
      if (!error && !*launched) return run(narrow_backward_keys<Scalar, kDim>, NarrowKeysShape<kDim>{});
    }
    return error;
  });
}

}  // namespace qacg::cuda::mma

// Copies of small tensors, and the number of torch's threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../common/half_types.h"
#include "../common/operators.h"

namespace qacg {

template <typename Element>
void per_head_of(const Tensor& t, int64_t heads, int64_t dims, float* to) {
  const auto strides = t.strides();
  const size_t own = dims > 0;
  const int64_t head = strides.size() > own && t.size(0) > 1 ? strides[0] : 0,
                dim = own ? strides[strides.size() - 1] : 0;
  const Element* from = data<Element>(t);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t d = 0; d < std::max<int64_t>(dims, 1); ++d) *to++ += widen(from[h * head + d * dim]);
  }
}

// Adds a gate vector (D), (1, D) or (H, D) of any element type to (H, D) floats; with `dims` 0, a bias (), (1) or (H)
// to (H) floats.
inline void per_head(const Tensor& t, int64_t heads, int64_t dims, float* to) {
  switch (t.scalar_type()) {
    case ScalarType::Half:
      return per_head_of<Float16>(t, heads, dims, to);
    case ScalarType::BFloat16:
      return per_head_of<Bfloat16>(t, heads, dims, to);
    default:
      return per_head_of<float>(t, heads, dims, to);
  }
}

template <typename Integer>
std::vector<int32_t> integers_of(const Tensor& t) {
  const Integer* from = data<Integer>(t);
  const int64_t stride = t.stride(0);
  std::vector<int32_t> result(t.size(0));
  for (int32_t& number : result) {
    // Clamped, because a length of 2^32 + 3 would wrap to 3.
    number = static_cast<int32_t>(std::clamp<int64_t>(*from, INT32_MIN, INT32_MAX));
    from += stride;
  }
  return result;
}

// Copies a vector of int32 or int64, clamped to the range of int32.
inline std::vector<int32_t> integers(const Tensor& t) {
  return t.scalar_type() == ScalarType::Int ? integers_of<int32_t>(t) : integers_of<int64_t>(t);
}

inline int64_t threads_of_torch() { return torch::stable::get_num_threads(); }

}  // namespace qacg

// Tensors, copies and threads of torch through its stable ABI.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../common/half_types.h"
#include "errors.h"

namespace qacg {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Sizes = std::vector<int64_t>;

template <typename T>
T* data(const Tensor& t) {
  return static_cast<T*>(t.data_ptr());
}

inline Sizes sizes_of(const Tensor& t) {
  const auto sizes = t.sizes();
  return Sizes(sizes.begin(), sizes.end());
}

inline int64_t bytes_of(const Tensor& t) { return t.numel() * static_cast<int64_t>(t.element_size()); }

// An uninitialised tensor on the device of `like`. Uses the C function, because torch::stable::new_empty looks the
// operator up by name each time.
inline Tensor empty(const Tensor& like, const Sizes& sizes, ScalarType type) {
  int32_t number = torch::stable::detail::to<int32_t>(torch::stable::detail::from(type));
  AtenTensorHandle made = nullptr;
  const AOTITorchError failed = aoti_torch_aten_new_empty(like.get(), sizes.data(), sizes.size(), &number,
                                                          /*layout=*/nullptr, /*device=*/nullptr, /*device_index=*/0,
                                                          /*pin_memory=*/nullptr, &made);
  if (failed) {
    std::string text;
    for (const int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
    refuse("backend 'cpu': expected memory for a ", torch::headeronly::toString(type), " tensor of shape (", text,
           "), got none from torch, which printed the reason. If memory is short, use a smaller batch");
  }
  return Tensor(made);
}

// An uninitialised tensor with t's memory order, as empty_dense_like in qacg_kernels/operators/schema.py.
inline Tensor empty_dense_like(const Tensor& t) {
  const Sizes s = sizes_of(t);
  if (s.size() != 4 || t.stride(1) >= t.stride(2)) return empty(t, s, t.scalar_type());
  const Tensor heads_inside = empty(t, {s[0], s[2], s[1], s[3]}, t.scalar_type());
  const Sizes strides{s[2] * s[1] * s[3], s[3], s[1] * s[3], 1};
  AtenTensorHandle view = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch__reinterpret_tensor(heads_inside.get(), 4, s.data(), strides.data(), /*storage_offset=*/0, &view));
  return Tensor(view);
}

inline Tensor dense_copy(const Tensor& t, ScalarType type) {
  Tensor copy = empty(t, sizes_of(t), type);
  TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(copy.get(), t.get(), /*non_blocking=*/false));
  return copy;
}

template <typename Element>
void per_head_of(const Tensor& t, int64_t heads, int64_t dims, float* to) {
  const auto strides = t.strides();
  const size_t own = dims > 0;
  const int64_t head = strides.size() > own ? strides[0] : 0, dim = own ? strides[strides.size() - 1] : 0;
  const Element* from = data<Element>(t);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t d = 0; d < std::max<int64_t>(dims, 1); ++d) *to++ = widen(from[h * head + d * dim]);
  }
}

// Copies a gate vector (D) or (H, D) of any element type to (H, D) floats; with `dims` 0, a bias () or (H) to (H)
// floats.
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

// What the operators of the CPU and the CUDA library share, through torch's stable ABI: their arguments, checks of
// devices, options of a problem, and new tensors. The schema is in qacg_kernels/operators/schema.py.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "checks.h"
#include "dropout.h"
#include "errors.h"

namespace qacg {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Sizes = std::vector<int64_t>;

// Parameters that forward and backward have in common, in schema order, and the Arguments made of them. Torch boxes an
// operator by the types of its parameters, so they cannot be one struct.
#define QACG_TENSORS                                                                                                   \
  const Tensor &query, const Tensor &key, const Tensor &value, const Tensor &context_query, const Tensor &context_key, \
      const OptionalTensor &gate_lambda, const OptionalTensor &gate_query, const OptionalTensor &gate_context_query,   \
      const OptionalTensor &gate_key, const OptionalTensor &gate_context_key, const OptionalTensor &gate_query_bias,   \
      const OptionalTensor &gate_context_query_bias, const OptionalTensor &gate_key_bias,                              \
      const OptionalTensor &gate_context_key_bias, const OptionalTensor &attn_mask, const OptionalTensor &key_lengths, \
      const OptionalTensor &cu_seqlens, const OptionalTensor &dropout_seed, const OptionalTensor &quasi_bias
#define QACG_OPTIONS                                                                                                 \
  int64_t max_seqlen, bool is_causal, double dropout_p, double scale, double quasi_scale, double beta, double gamma, \
      int64_t gate_form
// clang-format off: not one name a line
#define QACG_ARGUMENTS                                                                                               \
  {query, key, value, context_query, context_key, gate_lambda, gate_query, gate_context_query, gate_key,             \
   gate_context_key, gate_query_bias, gate_context_query_bias, gate_key_bias, gate_context_key_bias, attn_mask,      \
   key_lengths, cu_seqlens, dropout_seed, quasi_bias, max_seqlen, is_causal, dropout_p, scale, quasi_scale, beta, gamma, static_cast<GateForm>(gate_form)}
// clang-format on

struct Arguments {
  const Tensor &query, &key, &value, &context_query, &context_key;
  const OptionalTensor &gate_lambda, &gate_query, &gate_context_query, &gate_key, &gate_context_key, &gate_query_bias,
      &gate_context_query_bias, &gate_key_bias, &gate_context_key_bias, &attn_mask, &key_lengths, &cu_seqlens,
      &dropout_seed, &quasi_bias;
  int64_t max_seqlen;
  bool is_causal;
  double dropout_p, scale, quasi_scale, beta, gamma;
  GateForm gate_form;

  const OptionalTensor& vector(int index) const {
    const OptionalTensor* all[] = {&gate_query, &gate_context_query, &gate_key, &gate_context_key};
    return *all[index];
  }
  const OptionalTensor& bias(int index) const {
    const OptionalTensor* all[] = {&gate_query_bias, &gate_context_query_bias, &gate_key_bias, &gate_context_key_bias};
    return *all[index];
  }
};

// In the order of the schema.
using ForwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
using BackwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                                  Tensor, Tensor, Tensor, Tensor>;

template <typename T>
T* data(const Tensor& t) {
  return static_cast<T*>(t.data_ptr());
}

inline Sizes sizes_of(const Tensor& t) {
  const auto sizes = t.sizes();
  return Sizes(sizes.begin(), sizes.end());
}

// The shape of t without D: (B, H, L), or (T, H) if packed.
inline Sizes row_sizes(const Tensor& t) {
  Sizes sizes = sizes_of(t);
  sizes.pop_back();
  return sizes;
}

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
    refuse("quasi-attention: expected memory for a ", torch::headeronly::toString(type), " tensor of shape (", text,
           "), got none from torch, which printed the reason. If memory is short, use a smaller batch");
  }
  return Tensor(made);
}

inline Tensor no_rows(const Tensor& like, ScalarType type) { return empty(like, {0}, type); }

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

// An argument and its name; `tensor` is null if it is None.
struct Named {
  const Tensor* tensor;
  const char* name;

  Named(const Tensor& t, const char* name) : tensor(&t), name(name) {}
  Named(const OptionalTensor& t, const char* name) : tensor(t ? &*t : nullptr), name(name) {}
};

// Requires that is_here(tensor) is true for each of some tensors.
template <typename Here>
void check_devices(const Here& is_here, std::initializer_list<Named> tensors) {
  for (const auto& [t, name] : tensors) {
    require(!t || is_here(*t), name, ": expected a tensor on query's device, got one on another device");
  }
}

template <typename Here>
void check_devices(const Here& is_here, const Arguments& a) {
  check_devices(is_here, {{a.key, "key"},
                          {a.value, "value"},
                          {a.context_query, "context_query"},
                          {a.context_key, "context_key"},
                          {a.gate_lambda, "gate_lambda"},
                          {a.gate_query, "gate_query"},
                          {a.gate_context_query, "gate_context_query"},
                          {a.gate_key, "gate_key"},
                          {a.gate_context_key, "gate_context_key"},
                          {a.gate_query_bias, "gate_query_bias"},
                          {a.gate_context_query_bias, "gate_context_query_bias"},
                          {a.gate_key_bias, "gate_key_bias"},
                          {a.gate_context_key_bias, "gate_context_key_bias"},
                          {a.attn_mask, "attn_mask"},
                          {a.key_lengths, "key_lengths"},
                          {a.cu_seqlens, "cu_seqlens"},
                          {a.dropout_seed, "dropout_seed"},
                          {a.quasi_bias, "quasi_bias"}});
}

// Checks the arguments, and describes sizes, mask and options in a problem of the CPU or the CUDA kernels.
template <typename Problem>
void describe_options(Problem& p, const Arguments& a) {
  const std::string wrong = wrong_arguments(a);
  require(wrong.empty(), wrong);
  p.heads = a.query.size(1);
  p.head_dim = a.query.size(a.query.dim() - 1);
  require(p.head_dim >= 1 && p.head_dim <= 256, "query: expected a head size of 1 to 256, got ", p.head_dim);
  p.column_gate = a.gate_form == GateForm::kColumn;
  p.beta = static_cast<float>(a.beta);
  p.gamma = static_cast<float>(a.gamma);
  if (a.attn_mask) {
    using Mask = decltype(p.mask_kind);
    const Tensor& mask = *a.attn_mask;
    p.mask_kind = mask.scalar_type() == ScalarType::Bool ? Mask::kBoolean : Mask::kAdditive;
    p.mask = mask.data_ptr();
    for (int d = 0; d < 4; ++d) p.mask_strides[d] = mask.size(d) == 1 ? 0 : mask.stride(d);
  }
  p.is_causal = a.is_causal;
  p.scale = static_cast<float>(a.scale);
  p.quasi_scale = static_cast<float>(a.quasi_scale);
  // dropout_p is rounded to a multiple of 2^-16, as in dropout.py.
  p.drop_threshold = drop_threshold(a.dropout_p);
  p.keep_scale = keep_scale(p.drop_threshold);
}

}  // namespace qacg

// Argument checks that keep direct calls of the operators from accessing wrong memory. Kernels rely on all sizes, and a
// direct call has not passed the validation of the public functions (qacg_kernels/call/validation.py). CPU and CUDA
// host code use these checks, with any tensor type.
#pragma once

#include <stdint.h>

#include <initializer_list>
#include <string>

namespace qacg {

// Forms of the gate, in the order of FORMS in qacg_kernels/call/problem.py.
enum class GateForm : int64_t { kRow, kColumn };

// The sizes of up to four dimensions.
struct Sizes4 {
  int64_t sizes[4] = {};
  int64_t dims = 0;

  Sizes4(std::initializer_list<int64_t> given) {
    for (const int64_t size : given) sizes[dims++] = size;
  }
  // The sizes of the first `count` dimensions of a tensor, which has at most four.
  template <typename Tensor>
  Sizes4(const Tensor& t, int64_t count) : dims(count) {
    for (int64_t d = 0; d < count; ++d) sizes[d] = t.size(d);
  }
  template <typename Tensor>
  bool are_of(const Tensor& t) const {
    bool same = t.dim() == dims;
    for (int64_t d = 0; same && d < dims; ++d) same = t.size(d) == sizes[d];
    return same;
  }
};

// Finds the first argument that is wrong; `error` is then the message for an exception, else "".
class Checks {
 public:
  std::string error;

  void require(bool fits, const char* name, const char* expected) {
    if (error.empty() && !fits) error = std::string(name) + ": expected " + expected;
  }

  // Requires one of these shapes, and this dtype.
  template <typename Tensor, typename Type>
  void tensor(const char* name, const Tensor& t, std::initializer_list<Sizes4> shapes, Type type) {
    bool fits = false;
    for (const Sizes4& shape : shapes) fits = fits || shape.are_of(t);
    if (error.empty() && !fits) {
      std::string expected;
      for (const Sizes4& shape : shapes) expected += (expected.empty() ? "" : " or ") + text(shape.sizes, shape.dims);
      error = std::string(name) + ": expected shape " + expected + got(t);
    }
    require(
        t.scalar_type() == type, name,
        "query's dtype (float32 for row_max, row_sum, query_gate, key_gate and their gradients; one of the two for all "
        "parameters of the gate), got another dtype");
  }

  // Requires that each size of the tensor is 1 or that of `full`.
  template <typename Tensor>
  void broadcasts(const char* name, const Tensor& t, const Sizes4& full) {
    bool fits = t.dim() == full.dims;
    for (int64_t d = 0; fits && d < full.dims; ++d) fits = t.size(d) == 1 || t.size(d) == full.sizes[d];
    if (!error.empty() || fits) return;
    error = std::string(name) + ": expected sizes of 1 or " + text(full.sizes, full.dims) + got(t);
  }

 private:
  static std::string text(const int64_t* sizes, int64_t dims) {
    std::string list;
    for (int64_t d = 0; d < dims; ++d) list += (d ? ", " : "") + std::to_string(sizes[d]);
    return "(" + list + ")";
  }
  template <typename Tensor>
  static std::string got(const Tensor& t) {
    std::string list;
    for (int64_t d = 0; d < t.dim(); ++d) list += (d ? ", " : "") + std::to_string(t.size(d));
    return ", got shape (" + list + ")";
  }
};

// Returns the first error in the inputs that forward and backward have in common, or "". `Arguments` has the names of
// the operators' schema (qacg_kernels/operators/schema.py).
template <typename Arguments>
std::string wrong_arguments(const Arguments& a) {
  using Type = decltype(a.query.scalar_type());
  Checks c;
  const bool packed = a.cu_seqlens.has_value();
  const int64_t dims = packed ? 3 : 4;
  c.require(a.query.dim() == dims, "query",
            "4 dimensions (B, H, L, D), or 3 (T, H, D) with cu_seqlens, got another number");
  c.require(a.key.dim() == dims, "key",
            "4 dimensions (B, H, S, D), or 3 (T, H, D) with cu_seqlens, got another number");
  c.require(a.gate_form == GateForm::kRow || a.gate_form == GateForm::kColumn, "gate_form",
            "0 (row) or 1 (column), got another number");
  if (!c.error.empty()) return c.error;
  const Type type = a.query.scalar_type();
  const int64_t heads = a.query.size(1), head_dim = a.query.size(dims - 1);
  const Sizes4 wide(a.query, dims), rows(a.query, dims - 1);
  Sizes4 keys = wide;
  if (!packed) keys.sizes[2] = a.key.size(2);
  c.tensor("key", a.key, {keys}, type);
  c.tensor("value", a.value, {keys}, type);
  c.tensor("context_query", a.context_query, {wide}, type);
  c.tensor("context_key", a.context_key, {keys}, type);
  if (a.gate_lambda) {
    c.tensor("gate_lambda", *a.gate_lambda, {rows}, type);
    c.require(a.gate_form == GateForm::kRow, "gate_form", "0 (row) with gate_lambda, got 1 (column)");
  } else {
    const struct {
      const char* name;
      decltype(a.gate_query) parameter;
      bool is_vector;
    } parameters[] = {{"gate_query", a.gate_query, true},
                      {"gate_context_query", a.gate_context_query, true},
                      {"gate_key", a.gate_key, true},
                      {"gate_context_key", a.gate_context_key, true},
                      {"gate_query_bias", a.gate_query_bias, false},
                      {"gate_context_query_bias", a.gate_context_query_bias, false},
                      {"gate_key_bias", a.gate_key_bias, false},
                      {"gate_context_key_bias", a.gate_context_key_bias, false}};
    const bool in_float32 = a.gate_query && a.gate_query->scalar_type() == Type::Float;
    for (const auto& [name, parameter, is_vector] : parameters) {
      c.require(parameter || !is_vector, name, "a tensor, because gate_lambda is None, got None");
      if (!parameter) continue;
      if (is_vector) {
        c.tensor(name, *parameter, {{head_dim}, {1, head_dim}, {heads, head_dim}}, in_float32 ? Type::Float : type);
      } else {
        c.tensor(name, *parameter, {{}, {1}, {heads}}, in_float32 ? Type::Float : type);
      }
    }
    c.require(a.gate_form == GateForm::kColumn || wide.are_of(a.key), "gate",
              "as many keys as queries, because a row gate reads the key at each query's position, got another number. "
              "Pass gate_lambda or gate_form 1 (column)");
  }

  const auto integers = [&](const char* name, const auto& t) {
    c.require(t.dim() == 1 && (t.scalar_type() == Type::Int || t.scalar_type() == Type::Long), name,
              "one dimension of int32 or int64, got another dtype or shape");
  };
  if (packed) {
    integers("cu_seqlens", *a.cu_seqlens);
    c.require(!c.error.empty() || a.cu_seqlens->size(0) > 0, "cu_seqlens", "offsets 0, ..., T, got none");
    c.require(!a.attn_mask && !a.key_lengths, "attn_mask, key_lengths", "None with cu_seqlens, got a tensor");
  } else {
    if (a.attn_mask) {
      c.broadcasts("attn_mask", *a.attn_mask, {wide.sizes[0], heads, wide.sizes[2], keys.sizes[2]});
      c.require(a.attn_mask->scalar_type() == Type::Bool || a.attn_mask->scalar_type() == type, "attn_mask",
                "bool or query's dtype, got another dtype");
    }
    if (a.key_lengths) {
      integers("key_lengths", *a.key_lengths);
      c.tensor("key_lengths", *a.key_lengths, {{wide.sizes[0]}}, a.key_lengths->scalar_type());
    }
  }
  if (a.quasi_bias) {
    c.broadcasts("quasi_bias", *a.quasi_bias, rows);
    c.require(a.quasi_bias->scalar_type() == Type::Float, "quasi_bias", "float32, got another dtype");
  }
  c.require(a.dropout_p >= 0 && a.dropout_p < 1, "dropout_p", "a probability in [0, 1), got another number");
  if (a.dropout_p > 0) {
    c.require(a.dropout_seed && a.dropout_seed->scalar_type() == Type::Long && a.dropout_seed->dim() == 0,
              "dropout_seed", "an int64 scalar tensor, because dropout_p > 0, got another value");
  }
  return c.error;
}

// Returns the first error in the tensors that only the backward has, or "". A softmax_out that was not saved is empty.
template <typename Arguments, typename Tensor, typename OptionalTensor>
std::string wrong_gradients(const Arguments& a, const Tensor& grad_out, const OptionalTensor& grad_query_gate,
                            const OptionalTensor& grad_key_gate, const Tensor& softmax_out, const Tensor& row_max,
                            const Tensor& row_sum, const Tensor& query_gate, const Tensor& key_gate) {
  using Type = decltype(a.query.scalar_type());
  Checks c;
  const Type type = a.query.scalar_type();
  const int64_t dims = a.query.dim();
  const Sizes4 wide(a.query, dims), rows(a.query, dims - 1);
  const Sizes4 key_rows(a.gate_form == GateForm::kColumn ? a.key : a.query, dims - 1);
  c.tensor("grad_out", grad_out, {wide}, type);
  if (softmax_out.numel() > 0) c.tensor("softmax_out", softmax_out, {wide}, type);
  c.tensor("row_max", row_max, {rows}, Type::Float);
  c.tensor("row_sum", row_sum, {rows}, Type::Float);
  if (!a.gate_lambda) {
    c.tensor("query_gate", query_gate, {rows}, Type::Float);
    c.tensor("key_gate", key_gate, {key_rows}, Type::Float);
    if (grad_query_gate) c.tensor("grad_query_gate", *grad_query_gate, {rows}, Type::Float);
    if (grad_key_gate) c.tensor("grad_key_gate", *grad_key_gate, {key_rows}, Type::Float);
  }
  return c.error;
}

}  // namespace qacg

// Whether the tensors of a call fit together, for both host halves: raw operators are called without the checks of
// qacg_kernels/call/problem.py, and kernels trust every size. For at::Tensor and torch::stable::Tensor alike.
#pragma once

#include <stdint.h>

#include <initializer_list>
#include <string>

namespace qacg {

// Finds the first thing that is wrong; `error` is then what an exception should say.
class Checks {
 public:
  std::string error;

  void require(bool holds, const char* name, const char* wanted) {
    if (error.empty() && !holds) error = std::string(name) + ": wanted " + wanted;
  }

  template <typename Tensor>
  void shape(const char* name, const Tensor& t, std::initializer_list<int64_t> sizes) {
    if (error.empty() && !has_shape(t, sizes)) error = got(name, t) + text(sizes);
  }

  // Of a parameter that heads share or have one each of.
  template <typename Tensor>
  void shape(const char* name, const Tensor& t, std::initializer_list<int64_t> shared,
             std::initializer_list<int64_t> per_head) {
    if (!error.empty() || has_shape(t, shared) || has_shape(t, per_head)) return;
    error = got(name, t) + text(shared) + " or " + text(per_head);
  }

  // Of a mask: each size is 1 or the full one.
  template <typename Tensor>
  void broadcasts(const char* name, const Tensor& t, const int64_t (&sizes)[4]) {
    if (!error.empty()) return;
    bool fits = t.dim() == 4;
    for (int d = 0; fits && d < 4; ++d) fits = t.size(d) == 1 || t.size(d) == sizes[d];
    if (!fits) error = got(name, t) + "each 1 or that of " + text({sizes[0], sizes[1], sizes[2], sizes[3]});
  }

 private:
  template <typename Tensor>
  static bool has_shape(const Tensor& t, std::initializer_list<int64_t> sizes) {
    if (t.dim() != static_cast<int64_t>(sizes.size())) return false;
    int64_t d = 0;
    for (const int64_t size : sizes) {
      if (t.size(d++) != size) return false;
    }
    return true;
  }

  template <typename Tensor>
  static std::string got(const char* name, const Tensor& t) {
    std::string sizes;
    for (int64_t d = 0; d < t.dim(); ++d) sizes += (d ? ", " : "") + std::to_string(t.size(d));
    return std::string(name) + ": got shape (" + sizes + "), wanted ";
  }

  static std::string text(std::initializer_list<int64_t> sizes) {
    std::string list;
    for (const int64_t size : sizes) list += (list.empty() ? "" : ", ") + std::to_string(size);
    return "(" + list + ")";
  }
};

// A tensor with the leading sizes of a wide one: (B, H, rows) of (B, H, rows, D), (T, H) of (T, H, D).
template <typename Tensor>
void check_rows(Checks& c, const char* name, const Tensor& t, const Tensor& wide) {
  if (wide.dim() == 3) return c.shape(name, t, {wide.size(0), wide.size(1)});
  c.shape(name, t, {wide.size(0), wide.size(1), wide.size(2)});
}

template <typename Tensor>
void check_like(Checks& c, const char* name, const Tensor& t, const Tensor& wide) {
  if (wide.dim() == 3) return c.shape(name, t, {wide.size(0), wide.size(1), wide.size(2)});
  c.shape(name, t, {wide.size(0), wide.size(1), wide.size(2), wide.size(3)});
}

// What is wrong with the arguments that forward and backward have in common, or "". `Arguments` has the names of the
// operators' schema (qacg_kernels/operators/schema.py).
template <typename Arguments>
std::string wrong_arguments(const Arguments& a) {
  using Type = decltype(a.query.scalar_type());
  Checks c;
  const bool packed = a.cu_seqlens.has_value();
  c.require(a.query.dim() == (packed ? 3 : 4), "query", "(B, H, L, D), or with cu_seqlens (T, H, D)");
  c.require(a.key.dim() == a.query.dim(), "key", "(B, H, S, D), or with cu_seqlens (T, H, D)");
  if (!c.error.empty()) return c.error;
  const int64_t heads = a.query.size(1), head_dim = a.query.size(a.query.dim() - 1);
  if (packed) {
    check_like(c, "key", a.key, a.query);
  } else {
    c.shape("key", a.key, {a.query.size(0), heads, a.key.size(2), head_dim});
  }
  check_like(c, "value", a.value, a.key);
  check_like(c, "context_query", a.context_query, a.query);
  check_like(c, "context_key", a.context_key, a.key);
  for (const auto* t : {&a.key, &a.value, &a.context_query, &a.context_key}) {
    c.require(t->scalar_type() == a.query.scalar_type(), "key, value, context_query, context_key", "query's dtype");
  }

  const auto typed = [&](const char* name, const auto& t) {
    c.require(t.scalar_type() == a.query.scalar_type(), name, "query's dtype");
  };
  if (a.gate_lambda) {
    check_rows(c, "gate_lambda", *a.gate_lambda, a.query);
    typed("gate_lambda", *a.gate_lambda);
    c.require(!a.column_gate, "column_gate", "the gate vectors, not gate_lambda");
  } else {
    const struct {
      const char* name;
      decltype(a.gate_query) vector;
    } vectors[] = {{"gate_query", a.gate_query},
                   {"gate_context_query", a.gate_context_query},
                   {"gate_key", a.gate_key},
                   {"gate_context_key", a.gate_context_key}};
    for (const auto& [name, vector] : vectors) {
      c.require(vector.has_value(), name, "a tensor, since gate_lambda is absent");
      if (!c.error.empty()) return c.error;
      c.shape(name, *vector, {head_dim}, {heads, head_dim});
      typed(name, *vector);
    }
    const struct {
      const char* name;
      decltype(a.gate_query_bias) bias;
    } biases[] = {{"gate_query_bias", a.gate_query_bias}, {"gate_key_bias", a.gate_key_bias}};
    for (const auto& [name, bias] : biases) {
      if (!bias) continue;
      c.shape(name, *bias, {}, {heads});
      typed(name, *bias);
    }
    c.require(a.column_gate || packed || a.query.size(2) == a.key.size(2), "gate",
              "as many keys as queries, since a row gate takes the key gate at the query's own position");
  }

  const auto integers = [&](const char* name, const auto& t) {
    c.require(t.dim() == 1 && (t.scalar_type() == Type::Int || t.scalar_type() == Type::Long), name,
              "one dimension of int32 or int64");
  };
  if (packed) {
    integers("cu_seqlens", *a.cu_seqlens);
    c.require(!c.error.empty() || a.cu_seqlens->size(0) > 0, "cu_seqlens", "offsets 0, ..., T");
    c.require(!a.attn_mask && !a.key_lengths, "attn_mask, key_lengths", "None beside cu_seqlens");
  } else {
    if (a.attn_mask) {
      c.broadcasts("attn_mask", *a.attn_mask, {a.query.size(0), heads, a.query.size(2), a.key.size(2)});
      c.require(a.attn_mask->scalar_type() == Type::Bool || a.attn_mask->scalar_type() == a.query.scalar_type(),
                "attn_mask", "bool or query's dtype");
    }
    if (a.key_lengths) {
      integers("key_lengths", *a.key_lengths);
      c.shape("key_lengths", *a.key_lengths, {a.query.size(0)});
    }
  }
  c.require(a.dropout_p >= 0 && a.dropout_p < 1, "dropout_p", "a probability in [0, 1)");
  if (a.dropout_p > 0) {
    c.require(a.dropout_seed && a.dropout_seed->scalar_type() == Type::Long && a.dropout_seed->dim() == 0,
              "dropout_seed", "an int64 scalar since dropout_p > 0");
  }
  return c.error;
}

// What is wrong with the tensors that only the backward has, or "". Branch outputs that were not saved are empty.
template <typename Arguments, typename Tensor, typename OptionalTensor>
std::string wrong_gradients(const Arguments& a, const Tensor& grad_out, const OptionalTensor& grad_query_gate,
                            const OptionalTensor& grad_key_gate, const Tensor& softmax_out, const Tensor& row_max,
                            const Tensor& row_sum, const Tensor& query_gate, const Tensor& key_gate) {
  using Type = decltype(a.query.scalar_type());
  Checks c;
  const Tensor& of_keys = a.column_gate ? a.key : a.query;
  check_like(c, "grad_out", grad_out, a.query);
  c.require(grad_out.scalar_type() == a.query.scalar_type(), "grad_out", "query's dtype");
  if (softmax_out.numel() > 0) {
    check_like(c, "softmax_out", softmax_out, a.query);
    c.require(softmax_out.scalar_type() == a.query.scalar_type(), "softmax_out", "query's dtype");
  }
  const auto kept = [&](const char* name, const Tensor& t, const Tensor& wide) {
    check_rows(c, name, t, wide);
    c.require(t.scalar_type() == Type::Float, name, "float32");
  };
  kept("row_max", row_max, a.query);
  kept("row_sum", row_sum, a.query);
  if (!a.gate_lambda) {
    kept("query_gate", query_gate, a.query);
    kept("key_gate", key_gate, of_keys);
    if (grad_query_gate) kept("grad_query_gate", *grad_query_gate, a.query);
    if (grad_key_gate) kept("grad_key_gate", *grad_key_gate, of_keys);
  }
  return c.error;
}

}  // namespace qacg

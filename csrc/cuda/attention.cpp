// The operators of the backend cuda through torch's stable ABI (torch 2.9): checks, allocation and launches. The
// operators' schema and the meaning of the arguments are in qacg_kernels/operators/schema.py.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "../common/first_calls.h"
#include "../common/operators.h"
#include "kernels.h"

#if defined(QACG_EMULATED)
#include "current_stream_emulator.h"
#else

#define QACG_DISPATCH_KEY CUDA

// Declared here because torch's header declares it only to code that torch's own CUDA build compiles.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);

namespace qacg::cuda {

// Whether a tensor is on the device type of these operators.
inline bool is_on_own_device(const torch::stable::Tensor& t) { return t.is_cuda(); }

class CurrentStream {
 public:
  explicit CurrentStream(const torch::stable::Tensor& t) : guard_(t.get_device_index()) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(t.get_device_index(), &stream_));
  }
  void* handle() const { return stream_; }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  void* stream_ = nullptr;
};

}  // namespace qacg::cuda

#endif

namespace qacg::cuda {
namespace {

void check_launch(const char* error) {
  if (error) refuse("backend 'cuda': ", error);
}

Tensor4 wide(const Tensor& t) {
  if (t.dim() == 3) return {t.data_ptr(), 0, t.stride(1), t.stride(0)};
  return {t.data_ptr(), t.stride(0), t.stride(1), t.stride(2)};
}

Rows rows(const Tensor& t) {
  if (t.dim() == 2) return {t.data_ptr(), 0, t.stride(1), t.stride(0)};
  return {t.data_ptr(), t.stride(0), t.stride(1), t.stride(2)};
}

// A gate vector (D), (1, D) or (H, D), or with own_dims = 0 a bias (), (1) or (H).
PerHead per_head(const Tensor& t, int64_t own_dims) {
  return {t.data_ptr(), t.dim() > own_dims && t.size(0) > 1 ? t.stride(0) : 0, own_dims ? t.stride(t.dim() - 1) : 0};
}

// A problem and the tensors that its pointers point into.
struct Call {
  Problem problem{};
  std::vector<Tensor> kept;

  const Tensor& keep(Tensor t) { return kept.emplace_back(std::move(t)); }
};

// A tensor whose rows have unit stride and start at multiples of 16 bytes, as the kernels' copies require. A tensor
// with another layout is copied: gradients of autograd may have any, for example that of a sum has strides of 0.
Tensor4 aligned(Call& call, const Tensor& t) {
  const int64_t last = t.dim() - 1;
  bool suits = t.stride(last) == 1 && reinterpret_cast<uintptr_t>(t.data_ptr()) % 16 == 0;
  for (int64_t d = 0; d < last; ++d) suits = suits && (t.size(d) == 1 || t.stride(d) % 8 == 0);
  return wide(suits ? t : call.keep(dense_copy(t, t.scalar_type())));
}

Element element_of(const Tensor& query) {
  const ScalarType type = query.scalar_type();
  require(type == ScalarType::Half || type == ScalarType::BFloat16,
          "query: expected dtype float16 or bfloat16 for backend 'cuda', got another");
  return type == ScalarType::Half ? Element::kFloat16 : Element::kBfloat16;
}

// Whether a tensor is on the device of `query`.
auto on_device_of(const Tensor& query) {
  return [&query](const Tensor& t) { return is_on_own_device(t) && t.get_device_index() == query.get_device_index(); };
}

// Must run before any code that assumes query's device, such as the guard of the stream.
void check_cuda(const Arguments& a) {
  require(is_on_own_device(a.query),
          "query: expected a tensor on a CUDA device for backend 'cuda', got one on another device");
  check_devices(on_device_of(a.query), a);
}

Integers integers(Call& call, const Tensor& t) {
  return {call.keep(t.is_contiguous() ? t : dense_copy(t, t.scalar_type())).data_ptr(),
          t.scalar_type() == ScalarType::Long};
}

void describe_lengths(Call& call, const Arguments& a) {
  Problem& p = call.problem;
  if (a.cu_seqlens) {
    p.cu_seqlens = integers(call, *a.cu_seqlens);
    p.sequences = a.cu_seqlens->size(0) - 1;
    p.packed_rows = a.query.size(0);
    p.query_length = p.key_length = std::min(a.max_seqlen, p.packed_rows);
    return;
  }
  p.sequences = a.query.size(0);
  p.query_length = a.query.size(2);
  p.key_length = a.key.size(2);
  if (a.key_lengths) p.key_lengths = integers(call, *a.key_lengths);
}

void describe_gate(Call& call, const Arguments& a) {
  Problem& p = call.problem;
  if (a.gate_lambda) {
    p.lambda = rows(*a.gate_lambda);
    return;
  }
  p.float32_gate = a.gate_query->scalar_type() == ScalarType::Float;
  for (int n = 0; n < 4; ++n) {
    p.gate_vectors[n] = per_head(*a.vector(n), 1);
    if (a.bias(n)) p.gate_biases[n] = per_head(*a.bias(n), 0);
  }
}

void describe_quasi_bias(Call& call, const Arguments& a) {
  if (!a.quasi_bias) return;
  const Tensor& bias = *a.quasi_bias;
  const auto stride = [&](int64_t d) { return bias.size(d) == 1 ? 0 : bias.stride(d); };
  call.problem.quasi_bias = {bias.data_ptr(), a.cu_seqlens ? 0 : stride(0), stride(1), stride(a.cu_seqlens ? 0 : 2)};
}

Call describe(const Arguments& a) {
  Call call;
  call.kept.reserve(12);
  Problem& p = call.problem;
  p.element = element_of(a.query);
  describe_options(p, a);
  require(p.head_dim % 8 == 0 && p.head_dim <= 128,
          "query: expected a head size that is a multiple of 8 up to 128 for backend 'cuda', got ", p.head_dim);
  p.is_key_mask = p.mask && p.mask_strides[2] == 0;
  for (const Tensor* t : {&a.query, &a.key}) {
    const int64_t length = t->size(a.cu_seqlens ? 0 : 2);
    require(length < int64_t{1} << 30, "query, key: expected fewer than 2^30 rows, got ", length);
  }
  p.query = aligned(call, a.query);
  p.key = aligned(call, a.key);
  p.value = aligned(call, a.value);
  p.context_query = aligned(call, a.context_query);
  p.context_key = aligned(call, a.context_key);
  describe_lengths(call, a);
  describe_gate(call, a);
  describe_quasi_bias(call, a);
  if (p.drop_threshold > 0) p.seed = static_cast<const int64_t*>(a.dropout_seed->data_ptr());
  return call;
}

ForwardResult attention(QACG_TENSORS, QACG_OPTIONS, bool save_softmax_out, bool save_quasi_out) {
  require(!save_quasi_out, "save_quasi_out: expected False for backend 'cuda', got True");
  const Arguments arguments QACG_ARGUMENTS;
  check_cuda(arguments);
  const CurrentStream stream(query);
  Call call = describe(arguments);
  Problem& p = call.problem;
  const ScalarType type = query.scalar_type();
  const bool has_vectors = !gate_lambda;
  Tensor out = empty_dense_like(query);
  Tensor softmax_out = save_softmax_out ? empty_dense_like(query) : no_rows(query, type);
  Tensor row_max = empty(query, row_sizes(query), ScalarType::Float);
  Tensor row_sum = empty(query, row_sizes(query), ScalarType::Float);
  Tensor query_gate = empty(query, has_vectors ? row_sizes(query) : Sizes{0}, ScalarType::Float);
  Tensor key_gate = empty(query, has_vectors ? row_sizes(p.column_gate ? key : query) : Sizes{0}, ScalarType::Float);
  p.out = wide(out);
  if (save_softmax_out) p.softmax_out = wide(softmax_out);
  p.row_max = rows(row_max);
  p.row_sum = rows(row_sum);
  if (has_vectors) {
    p.query_gate = rows(query_gate);
    p.key_gate = rows(key_gate);
  }
  if (p.column_gate) check_launch(run_key_gates(p, stream.handle()));
  const auto run = p.element == Element::kFloat16 ? run_forward<Float16> : run_forward<Bfloat16>;
  check_launch(run(p, stream.handle()));
  return {out, softmax_out, no_rows(query, type), row_max, row_sum, query_gate, key_gate};
}

BackwardResult attention_backward(const Tensor& grad_out, const OptionalTensor& grad_query_gate,
                                  const OptionalTensor& grad_key_gate, QACG_TENSORS, const Tensor& softmax_out,
                                  const Tensor& /*quasi_out*/, const Tensor& row_max, const Tensor& row_sum,
                                  const Tensor& query_gate, const Tensor& key_gate, QACG_OPTIONS) {
  const Arguments arguments QACG_ARGUMENTS;
  check_cuda(arguments);
  check_devices(on_device_of(query), {{grad_out, "grad_out"},
                                      {grad_query_gate, "grad_query_gate"},
                                      {grad_key_gate, "grad_key_gate"},
                                      {softmax_out, "softmax_out"},
                                      {row_max, "row_max"},
                                      {row_sum, "row_sum"},
                                      {query_gate, "query_gate"},
                                      {key_gate, "key_gate"}});
  const CurrentStream stream(query);
  Call call = describe(arguments);
  const std::string wrong = wrong_gradients(arguments, grad_out, grad_query_gate, grad_key_gate, softmax_out, row_max,
                                            row_sum, query_gate, key_gate);
  require(wrong.empty(), wrong);
  Problem& p = call.problem;
  const ScalarType type = query.scalar_type();
  const bool has_vectors = !gate_lambda;
  p.row_max = rows(row_max);
  p.row_sum = rows(row_sum);
  if (softmax_out.numel() > 0) p.softmax_out = aligned(call, softmax_out);

  Gradients g{};
  g.out = aligned(call, grad_out);
  std::vector<Tensor> results;
  Tensor4* slots[] = {&g.query, &g.key, &g.value, &g.context_query, &g.context_key};
  const Tensor* inputs[] = {&query, &key, &value, &context_query, &context_key};
  for (int t = 0; t < 5; ++t) *slots[t] = wide(results.emplace_back(empty_dense_like(*inputs[t])));
  results.push_back(gate_lambda ? empty(query, row_sizes(query), type) : no_rows(query, type));
  Sizes terms_sizes = row_sizes(query);
  terms_sizes.push_back(sizeof(RowTerms) / sizeof(float));
  g.terms = wide(call.keep(empty(query, terms_sizes, ScalarType::Float)));
  if (has_vectors) {
    p.query_gate = rows(query_gate);
    p.key_gate = rows(key_gate);
    if (grad_query_gate) g.query_gate = rows(*grad_query_gate);
    if (grad_key_gate) g.key_gate = rows(*grad_key_gate);
    g.query_logit = rows(call.keep(empty(query, sizes_of(query_gate), ScalarType::Float)));
    g.key_logit = rows(call.keep(empty(query, sizes_of(key_gate), ScalarType::Float)));
    g.gate_parts = gate_sums_parts(p);
    const int64_t floats = std::max<int64_t>(gate_sums_floats(p), 1);
    g.gate_sums = data<float>(call.keep(empty(query, {floats}, ScalarType::Float)));
  } else {
    g.lambda = rows(results.back());
  }
  const auto gradient_of = [&](const OptionalTensor& t) {
    return results.emplace_back(has_vectors && t ? empty(query, sizes_of(*t), t->scalar_type()) : no_rows(query, type));
  };
  for (int v = 0; v < 4; ++v) {
    const Tensor gradient = gradient_of(arguments.vector(v));
    if (has_vectors) g.gate_vectors[v] = per_head(gradient, 1);
  }
  for (int b = 0; b < 4; ++b) {
    const Tensor gradient = gradient_of(arguments.bias(b));
    if (has_vectors && arguments.bias(b)) g.gate_biases[b] = per_head(gradient, 0);
  }

  const auto run = p.element == Element::kFloat16 ? run_backward<Float16> : run_backward<Bfloat16>;
  check_launch(run(p, g, stream.handle()));
  if (has_vectors) check_launch(run_gate_sums(p, g, stream.handle()));
  return {results[0], results[1], results[2], results[3],  results[4],  results[5],  results[6],
          results[7], results[8], results[9], results[10], results[11], results[12], results[13]};
}

constexpr first_calls::Operator kForward{"cuda_attention", first_calls::kForward},
    kBackward{"cuda_attention_backward", first_calls::kBackward};

}  // namespace
}  // namespace qacg::cuda

STABLE_TORCH_LIBRARY_IMPL(qacg, QACG_DISPATCH_KEY, m) {
  using namespace qacg::cuda;
  using qacg::first_calls::checked;
  m.impl(kForward.name, qacg::guarded<checked<TORCH_BOX(&attention), kForward>>);
  m.impl(kBackward.name, qacg::guarded<checked<TORCH_BOX(&attention_backward), kBackward>>);
}

// For qacg_kernels/backends/cuda.
extern "C" __attribute__((visibility("default"))) void qacg_cuda_check_first_calls(const char* operators) {
  qacg::first_calls::check_in(operators);
}

// The operators qacg::cpu_attention and cpu_attention_backward through torch's stable ABI (torch 2.10): argument
// checks, allocation, conversion of tensors to a Problem, and threads.

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#if defined(QACG_STD_THREADS)
#include <thread>
#endif
#include <utility>
#include <vector>

#include "../common/first_calls.h"
#include "../common/operators.h"
#include "capability.h"
#include "huge_pages.h"
#include "problem.h"
#include "tensors.h"

namespace qacg {

namespace {

Element element_of(const Tensor& query) {
  switch (query.scalar_type()) {
    case ScalarType::Float:
      return Element::kFloat32;
    case ScalarType::BFloat16:
      return Element::kBfloat16;
    case ScalarType::Half:
      return Element::kFloat16;
    default:
      refuse("query: expected dtype float32, bfloat16 or float16 for backend 'cpu', got ",
             torch::headeronly::toString(query.scalar_type()));
  }
}

// The tensor itself if its last stride is 1, else a contiguous copy.
Tensor readable(const Tensor& t) {
  const int64_t last = t.dim() - 1;
  return t.stride(last) == 1 || t.size(last) <= 1 ? t : dense_copy(t, t.scalar_type());
}

Tensor as_float32(const Tensor& t) {
  return t.scalar_type() == ScalarType::Float ? t : dense_copy(t, ScalarType::Float);
}

Tensor4 wide(const Tensor& t) {
  const auto strides = t.strides();
  if (strides.size() == 3) return {t.data_ptr(), 0, strides[1], strides[0]};
  return {t.data_ptr(), strides[0], strides[1], strides[2]};
}

Rows rows(const Tensor& t) {
  const auto strides = t.strides();
  if (strides.size() == 2) return {data<float>(t), 0, strides[1], strides[0]};
  return {data<float>(t), strides[0], strides[1], strides[2]};
}

Rows broadcast_rows(const Tensor& t) {
  const auto stride = [&](int64_t d) { return t.size(d) == 1 ? 0 : t.stride(d); };  // 0 where it broadcasts
  if (t.dim() == 2) return {data<float>(t), 0, stride(1), stride(0)};
  return {data<float>(t), stride(0), stride(1), stride(2)};
}

// A problem and what its pointers point into.
struct Call {
  Problem problem{};
  std::vector<Tensor> kept;
  std::vector<float> gate;
  std::vector<int32_t> lengths;
  const Kernels* kernels = nullptr;
  int64_t longest_query = 0, longest_key = 0;

  const Tensor& keep(Tensor t) { return kept.emplace_back(std::move(t)); }
};

bool is_here(const Tensor& t) { return t.is_cpu(); }

void describe_gate(Call& call, const Arguments& a) {
  Problem& p = call.problem;
  if (a.gate_lambda) {
    p.lambda = rows(call.keep(as_float32(*a.gate_lambda)));
    return;
  }
  const int64_t vector = p.heads * p.head_dim;
  call.gate.resize(4 * vector + 2 * p.heads);
  float* to = call.gate.data();
  p.gate_vectors = to;
  for (int v = 0; v < 4; ++v, to += vector) per_head(*a.vector(v), p.heads, p.head_dim, to);
  p.gate_biases = to;
  for (int b = 0; b < 4; ++b) {  // the second and the fourth are added to those before them
    if (a.bias(b)) per_head(*a.bias(b), p.heads, /*dims=*/0, to + b / 2 * p.heads);
  }
}

void describe_lengths(Call& call, const Arguments& a) {
  Problem& p = call.problem;
  if (a.cu_seqlens) {
    call.lengths = integers(*a.cu_seqlens);
    p.sequences = static_cast<int64_t>(call.lengths.size()) - 1;
    p.cu_seqlens = call.lengths.data();
    const int64_t total = a.query.size(0);
    require(p.sequences >= 0 && p.cu_seqlens[0] == 0 && p.cu_seqlens[p.sequences] == total,
            "cu_seqlens: expected offsets from 0 to T = ", total, ", got no offsets, or another first or last one");
    for (int64_t b = 0; b < p.sequences; ++b) {
      const int64_t length = p.cu_seqlens[b + 1] - p.cu_seqlens[b];
      require(length >= 0, "cu_seqlens: expected offsets that never decrease, got a decrease after index ", b);
      call.longest_query = std::max(call.longest_query, length);
    }
    call.longest_key = call.longest_query;
    return;
  }
  p.sequences = a.query.size(0);
  p.query_length = call.longest_query = a.query.size(2);
  p.key_length = call.longest_key = a.key.size(2);
  if (a.key_lengths) {
    call.lengths = integers(*a.key_lengths);
    p.key_lengths = call.lengths.data();
  }
}

Call describe(const Arguments& a) {
  Call call;
  call.kept.reserve(16);
  Problem& p = call.problem;
  p.element = element_of(a.query);
  require(is_here(a.query), "query: expected a tensor on the CPU for backend 'cpu', got one on another device");
  check_devices(is_here, a);
  describe_options(p, a);
  const Choice choice = choose(p.element);
  require(choice.kernels, choice.why);
  call.kernels = choice.kernels;
  p.query = wide(call.keep(readable(a.query)));
  p.key = wide(call.keep(readable(a.key)));
  p.value = wide(call.keep(readable(a.value)));
  p.context_query = wide(call.keep(readable(a.context_query)));
  p.context_key = wide(call.keep(readable(a.context_key)));
  describe_lengths(call, a);
  describe_gate(call, a);
  if (a.quasi_bias) p.quasi_bias = broadcast_rows(*a.quasi_bias);
  p.has_dropout = p.drop_threshold > 0;
  if (p.has_dropout) p.seed = static_cast<uint64_t>(*data<int64_t>(*a.dropout_seed));
  return call;
}

// The units of a call: its blocks, divided so that there are several units for each thread where possible, or one unit
// for each sequence and head if `whole`. A unit packs the operands of its sequence and head once.
class UnitList {
 public:
  UnitList(const Call& call, bool keys, bool whole) : call_(call), keys_(keys) {
    const Problem& p = call.problem;
    const int64_t pairs = p.sequences * p.heads, target = 4 * threads_of_torch();
    const int64_t parts = whole ? 1 : std::max<int64_t>(1, (target + pairs - 1) / std::max<int64_t>(pairs, 1));
    size_ = pairs;
    if (parts == 1) return;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const Unit all = whole_unit(pair / p.heads, pair % p.heads);
      const int64_t step = (all.last + parts - 1) / parts;
      for (int64_t first = 0; first < all.last; first += step) {
        divided_.push_back({all.sequence, all.head, first, std::min(first + step, all.last)});
      }
    }
    size_ = divided_.size();
  }

  int64_t size() const { return size_; }

  void copy(int64_t first, int64_t count, Unit* to) const {
    if (!divided_.empty()) {
      std::copy_n(divided_.begin() + first, count, to);
      return;
    }
    // Each thread makes its own units. A list of 10,000 units would be new memory, written by a single thread.
    const int64_t heads = call_.problem.heads;
    for (Unit unit = whole_unit(first / heads, first % heads); count > 0; --count, ++unit.head) {
      if (unit.head == heads) unit = whole_unit(unit.sequence + 1, 0);
      *to++ = unit;
    }
  }

 private:
  Unit whole_unit(int64_t sequence, int64_t head) const {
    const Problem& p = call_.problem;
    int64_t length = keys_ ? p.key_length : p.query_length;
    if (p.cu_seqlens) length = p.cu_seqlens[sequence + 1] - p.cu_seqlens[sequence];
    const int64_t block = keys_ ? call_.kernels->key_block : call_.kernels->row_block;
    // A sequence without queries still has gradients of keys, which must be cleared.
    return {sequence, head, 0, std::max<int64_t>((length + block - 1) / block, 1)};
  }

  const Call& call_;
  const bool keys_;
  int64_t size_;
  std::vector<Unit> divided_;
};

// Runs part(0), ..., part(count - 1), each on a thread.
template <typename Part>
void on_threads(int64_t count, const Part& part) {
#if defined(QACG_STD_THREADS)
  // For the thread sanitizer (tests/check_sanitizers.py), which does not see OpenMP's joins.
  std::vector<std::thread> others;
  for (int64_t n = 1; n < count; ++n) others.emplace_back(part, n);
  part(0);
  for (std::thread& other : others) other.join();
#else
  // Torch's threads: as many as torch.set_num_threads allows, and one if the caller is such a thread itself.
  torch::stable::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) part(n);
  });
#endif
}

// Runs work(index, next, scratch) for every index on threads that each fetch an index when they are free. `next` is the
// index that the thread runs afterwards, or `count`. Results do not depend on which thread runs an index.
template <typename Work>
void in_parallel(const Tensor& like, int64_t count, int64_t scratch_bytes, const HugePages& pages, const Work& work) {
  if (count == 0) return;
  const int64_t threads = std::min<int64_t>(threads_of_torch(), count);
  const int64_t aligned = (scratch_bytes + 63) / 64 * 64;
  const Tensor scratch = empty(like, {threads * aligned + 64}, ScalarType::Byte);
  char* base = data<char>(scratch);
  base += (64 - reinterpret_cast<uintptr_t>(base) % 64) % 64;
  std::atomic<int64_t> started{0};
  on_threads(threads, [&](int64_t worker) {
    pages.populate(worker, threads);
    int64_t index = started++;
    while (index < count) {
      const int64_t next = started++;
      work(index, next, base + worker * aligned);
      index = next;
    }
  });
}

// Like in_parallel(), for units. Threads fetch many units several at a time. With tiny heads, fetching them one by one
// would take long, and threads would write to the same cache lines.
constexpr int64_t kUnitsAtOnce = 128;

template <typename Work>
void over_units(const Tensor& like, const UnitList& units, int64_t scratch_bytes, const HugePages& pages,
                const Work& work) {
  const int64_t all = units.size();
  const int64_t step = std::clamp<int64_t>(all / (16 * threads_of_torch()), 1, kUnitsAtOnce);
  in_parallel(like, (all + step - 1) / step, scratch_bytes, pages, [&](int64_t index, int64_t next, void* scratch) {
    const int64_t first = index * step, count = std::min(step, all - first), after = next * step;
    Unit some[kUnitsAtOnce + 1];
    units.copy(first, count, some);
    if (after < all) units.copy(after, 1, &some[count]);
    work(Units{some, count, after < all ? &some[count] : nullptr}, scratch);
  });
}

// Gradients of at least this many bytes do not stay in the caches until they are read. They are written past the
// caches, so that their lines need not be read first.
constexpr int64_t kStreamedBytes = int64_t{32} << 20, kCacheLine = 64;

bool rows_are_whole_lines(const Tensor& t) {
  const int64_t size = t.element_size(), last = t.dim() - 1;
  bool whole = reinterpret_cast<uintptr_t>(t.data_ptr()) % kCacheLine == 0;
  for (int64_t d = 0; d < last; ++d) whole = whole && t.stride(d) * size % kCacheLine == 0;
  return whole && t.size(last) * size % kCacheLine == 0;
}

int64_t bytes_of(const Tensor& t) { return t.numel() * static_cast<int64_t>(t.element_size()); }

// An uninitialised float32 tensor with the shape of t without D.
Tensor empty_rows(const Tensor& t) { return empty(t, row_sizes(t), ScalarType::Float); }

ForwardResult attention(QACG_TENSORS, QACG_OPTIONS, bool save_softmax_out, bool save_quasi_out) {
  require(!save_quasi_out, "save_quasi_out: expected False for backend 'cpu', got True");
  Call call = describe(QACG_ARGUMENTS);
  Problem& p = call.problem;
  const ScalarType type = query.scalar_type();
  Tensor out = empty_dense_like(query);
  Tensor softmax_out = save_softmax_out ? empty_dense_like(query) : no_rows(query, type);
  Tensor row_max = empty_rows(query), row_sum = empty_rows(query);
  Tensor query_gate = no_rows(query, ScalarType::Float), key_gate = no_rows(query, ScalarType::Float);
  p.out = wide(out);
  if (save_softmax_out) p.softmax_out = wide(softmax_out);
  p.row_max = rows(row_max);
  p.row_sum = rows(row_sum);
  if (!gate_lambda) {
    query_gate = empty_rows(query);
    key_gate = empty_rows(p.column_gate ? key : query);
    p.query_gate = rows(query_gate);
    p.key_gate = rows(key_gate);
  }
  const UnitList units(call, /*keys=*/false, /*whole=*/false);
  const int64_t bytes = call.kernels->forward_scratch(p, call.longest_query, call.longest_key);
  HugePages pages;
  for (const Tensor* t : {&out, &softmax_out}) pages.add(t->data_ptr(), bytes_of(*t));
  over_units(query, units, bytes, pages, [&](Units some, void* scratch) {
    call.kernels->forward(p, some, {scratch, call.longest_query, call.longest_key});
  });
  return {out, softmax_out, no_rows(query, type), row_max, row_sum, query_gate, key_gate};
}

// Sums partial gradients of a parameter over the sequences, and over the heads if they share it. Returns the sum in the
// shape and dtype of `like`, the parameter. `partial` has `stride` numbers for each sequence and head, of which the
// first `dims` are summed.
Tensor reduced(const float* partial, int64_t stride, int64_t dims, const Problem& p, const Tensor& like) {
  const bool shared = static_cast<int64_t>(like.numel()) == dims;
  std::vector<double> sums((shared ? 1 : p.heads) * dims);
  for (int64_t pair = 0; pair < p.sequences * p.heads; ++pair) {
    double* to = sums.data() + (shared ? 0 : pair % p.heads * dims);
    for (int64_t d = 0; d < dims; ++d) to[d] += partial[pair * stride + d];
  }
  Tensor result = empty(like, sizes_of(like), ScalarType::Float);
  std::copy(sums.begin(), sums.end(), data<float>(result));
  return like.scalar_type() == ScalarType::Float ? result : dense_copy(result, like.scalar_type());
}

// Allocates the gradients of the five operands.
std::vector<Tensor> wide_gradients(Gradients& g, std::array<const Tensor*, 5> operands, HugePages& pages) {
  Tensor4* slots[] = {&g.query, &g.key, &g.value, &g.context_query, &g.context_key};
  std::vector<Tensor> gradients;
  int64_t bytes = 0;
  bool whole_lines = true;
  for (size_t t = 0; t < operands.size(); ++t) {
    const Tensor& gradient = gradients.emplace_back(empty_dense_like(*operands[t]));
    *slots[t] = wide(gradient);
    bytes += bytes_of(gradient);
    pages.add(gradient.data_ptr(), bytes_of(gradient));
    whole_lines = whole_lines && rows_are_whole_lines(gradient);
  }
  g.streams = whole_lines && bytes >= kStreamedBytes;
  return gradients;
}

// `gates` are the query and key gates that the forward returned.
void describe_gate_gradients(Call& call, Gradients& g, const Tensor& query, const OptionalTensor& grad_query_gate,
                             const OptionalTensor& grad_key_gate, std::pair<const Tensor&, const Tensor&> gates) {
  const Problem& p = call.problem;
  const int64_t pairs = p.sequences * p.heads;
  const auto incoming = [&](const OptionalTensor& t) { return t ? rows(call.keep(as_float32(*t))) : Rows{}; };
  const auto floats = [&](const Sizes& sizes) -> const Tensor& {
    return call.keep(empty(query, sizes, ScalarType::Float));
  };
  g.query_gate = incoming(grad_query_gate);
  g.key_gate = incoming(grad_key_gate);
  g.query_logit = rows(floats(sizes_of(gates.first)));
  g.key_logit = rows(floats(sizes_of(gates.second)));
  g.gate_vectors = data<float>(floats({pairs, 4, p.head_dim}));
  g.gate_biases = data<float>(floats({pairs, 2}));
}

void run_backward(const Call& call, const Gradients& g, const Tensor& query, const HugePages& pages) {
  const Problem& p = call.problem;
  const int64_t bytes = call.kernels->backward_scratch(p, call.longest_query, call.longest_key);
  const auto run = [&](void (*pass)(const Problem&, const Gradients&, Units, Scratch), const UnitList& units) {
    over_units(query, units, bytes, pages,
               [&](Units some, void* scratch) { pass(p, g, some, {scratch, call.longest_query, call.longest_key}); });
  };
  // One pass does 8 products where two do 11, but leaves threads idle when there are few heads.
  const int64_t threads = threads_of_torch(), pairs = p.sequences * p.heads;
  if (threads == 1 || pairs >= 2 * threads) {
    run(call.kernels->backward, UnitList(call, /*keys=*/false, /*whole=*/true));
  } else {
    run(call.kernels->backward_rows, UnitList(call, /*keys=*/false, /*whole=*/false));
    run(call.kernels->backward_keys, UnitList(call, /*keys=*/true, /*whole=*/false));
  }
  if (!g.gate_vectors) return;
  in_parallel(query, pairs, 0, HugePages(),
              [&](int64_t index, int64_t, void*) { call.kernels->gate_sums(p, g, index / p.heads, index % p.heads); });
}

BackwardResult attention_backward(const Tensor& grad_out, const OptionalTensor& grad_query_gate,
                                  const OptionalTensor& grad_key_gate, QACG_TENSORS, const Tensor& softmax_out,
                                  const Tensor& /*quasi_out*/, const Tensor& row_max, const Tensor& row_sum,
                                  const Tensor& query_gate, const Tensor& key_gate, QACG_OPTIONS) {
  const Arguments arguments QACG_ARGUMENTS;
  Call call = describe(arguments);
  const std::string wrong = wrong_gradients(arguments, grad_out, grad_query_gate, grad_key_gate, softmax_out, row_max,
                                            row_sum, query_gate, key_gate);
  require(wrong.empty(), wrong);
  check_devices(is_here, {{grad_out, "grad_out"},
                          {grad_query_gate, "grad_query_gate"},
                          {grad_key_gate, "grad_key_gate"},
                          {softmax_out, "softmax_out"},
                          {row_max, "row_max"},
                          {row_sum, "row_sum"},
                          {query_gate, "query_gate"},
                          {key_gate, "key_gate"}});
  Problem& p = call.problem;
  const bool has_vectors = !gate_lambda;
  p.row_max = rows(row_max);
  p.row_sum = rows(row_sum);
  if (softmax_out.numel() > 0) p.softmax_out = wide(call.keep(readable(softmax_out)));

  Gradients g{};
  g.out = wide(call.keep(readable(grad_out)));
  HugePages pages;
  const std::vector<Tensor> wide_grads = wide_gradients(g, {&query, &key, &value, &context_query, &context_key}, pages);
  const Tensor delta = empty_rows(query);
  g.delta = rows(delta);
  const Tensor d_lambda = has_vectors ? no_rows(query, ScalarType::Float) : empty_rows(query);
  if (has_vectors) {
    p.query_gate = rows(query_gate);
    p.key_gate = rows(key_gate);
    describe_gate_gradients(call, g, query, grad_query_gate, grad_key_gate, {query_gate, key_gate});
  } else {
    g.lambda = rows(d_lambda);
  }
  run_backward(call, g, query, pages);

  const ScalarType type = query.scalar_type();
  const auto vector = [&](int index, const OptionalTensor& like) {
    if (!has_vectors) return no_rows(query, type);
    return reduced(g.gate_vectors + index * p.head_dim, 4 * p.head_dim, p.head_dim, p, *like);
  };
  const auto bias = [&](int side, const OptionalTensor& like) {
    return has_vectors && like ? reduced(g.gate_biases + side, 2, 1, p, *like) : no_rows(query, type);
  };
  return {wide_grads[0],
          wide_grads[1],
          wide_grads[2],
          wide_grads[3],
          wide_grads[4],
          type == ScalarType::Float ? d_lambda : dense_copy(d_lambda, type),
          vector(0, gate_query),
          vector(1, gate_context_query),
          vector(2, gate_key),
          vector(3, gate_context_key),
          bias(0, gate_query_bias),
          bias(0, gate_context_query_bias),
          bias(1, gate_key_bias),
          bias(1, gate_context_key_bias)};
}

constexpr first_calls::Operator kForward{"cpu_attention", first_calls::kForward};
constexpr first_calls::Operator kBackward{"cpu_attention_backward", first_calls::kBackward};

}  // namespace
}  // namespace qacg

// For qacg_kernels/backends/cpu.py. Each copy of the package in a process has a separate operator namespace
// (qacg_kernels/operators/schema.py) and passes its name. Torch's macro would require the name when this is compiled.
#define QACG_EXPORTED extern "C" __attribute__((visibility("default")))

QACG_EXPORTED void qacg_cpu_register(const char* operators) {
  using namespace qacg;
  using torch::stable::detail::StableLibrary;
  static std::vector<std::unique_ptr<StableLibrary>> kept;  // destroying a library would unregister its operators
  kept.push_back(std::make_unique<StableLibrary>(StableLibrary::Kind::IMPL, operators, "CPU", __FILE__, __LINE__));
  StableLibrary& library = *kept.back();
  library.impl(kForward.name, guarded<first_calls::checked<TORCH_BOX(&attention), kForward>>);
  library.impl(kBackward.name, guarded<first_calls::checked<TORCH_BOX(&attention_backward), kBackward>>);
}

QACG_EXPORTED void qacg_cpu_check_first_calls(const char* operators) { qacg::first_calls::check_in(operators); }

// One call of the Triton backend as its kernels see it: the address and the strides of every tensor, sizes and scalars.
// The names are those of qacg_kernels/backends/triton/arguments.py.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../common/operators.h"

namespace qacg::launch {

// The tensors of a call. The first kGiven fields are arguments of the operators, in the order of the schemas; a forward
// writes the fields from kSoftmaxOut to kOut.
// clang-format off: not one name a line
enum Field : int {
  kQuery, kKey, kValue, kContextQuery, kContextKey, kLambda,
  kGateQuery, kGateContextQuery, kGateKey, kGateContextKey,
  kGateQueryBias, kGateContextQueryBias, kGateKeyBias, kGateContextKeyBias,
  kMask, kKeyLengths, kOffsets, kSeed, kQuasiBias,
  kGradOut, kGradQueryGate, kGradKeyGate,
  kSoftmaxOut, kQuasiOut, kRowMax, kRowSum, kQueryGate, kKeyGate,
  kOut,
  kGradQuery, kGradKey, kGradValue, kGradContextQuery, kGradContextKey, kGradLambda,
  kGradGateQuery, kGradGateContextQuery, kGradGateKey, kGradGateContextKey,
  kGradGateQueryBias, kGradGateContextQueryBias, kGradGateKeyBias, kGradGateContextKeyBias,
  kQueryLogit, kKeyLogit, kDelta, kShift, kWeight, kSums,
  kFields
};

// Numbers of a call that kernels take as arguments: integers, then floats.
enum Scalar : int {
  kHeads, kQueries, kKeys, kHeadDim, kTokens, kSequences, kThreshold,
  kScale, kScore, kQuasi, kKeep, kBeta, kGamma,
  kScalars
};
// clang-format on
constexpr int kInputs = kGradOut, kGiven = kOut, kDifferentiable = kMask, kFirstGradient = kGradQuery;
constexpr int kIntegers = kScale;

// A slot is the value of a kernel's argument: of each field the address and up to four strides, and then the scalars.
constexpr int kMembers = 5, kBatch = 1, kHead = 2, kRow = 3, kColumn = 4;
constexpr int kSlots = kFields * kMembers + kScalars;

struct Options {
  bool is_causal, tf32;
  double dropout_p, scale, quasi_scale, beta, gamma;  // a NaN as scale stands for the default
  GateForm gate_form;

  bool column_gate() const { return gate_form == GateForm::kColumn; }
};

// A tensor of a call, without ownership; absent if `handle` is null. Has the members that checks.h reads.
struct View {
  AtenTensorHandle handle = nullptr;
  void* data = nullptr;
  int64_t dims = 0, *sizes = nullptr, *strides = nullptr;
  int32_t type = 0;

  View() = default;
  explicit View(AtenTensorHandle t) : handle(t) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(t, &dims));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(t, &sizes));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(t, &strides));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(t, &type));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(t, &data));
  }
  explicit operator bool() const { return handle; }
  bool has_value() const { return handle; }
  const View& operator*() const { return *this; }
  const View* operator->() const { return this; }
  int64_t dim() const { return dims; }
  int64_t size(int64_t d) const { return sizes[d]; }
  int64_t stride(int64_t d) const { return strides[d]; }
  ScalarType scalar_type() const { return static_cast<ScalarType>(type); }
  int64_t numel() const {
    int64_t n = handle != nullptr;
    for (int64_t d = 0; d < dims; ++d) n *= sizes[d];
    return n;
  }
  bool same_as(const View& other) const {
    return type == other.type && dims == other.dims && std::equal(sizes, sizes + dims, other.sizes);
  }
  bool has_dense_rows() const { return !dims || strides[dims - 1] == 1 || sizes[dims - 1] == 1; }
};

// Shape, strides and dtype of a tensor that a call allocates.
struct Layout {
  int64_t dims = 0, sizes[4] = {}, strides[4] = {};
  int32_t type = 0;

  Layout() = default;
  // The first `count` sizes of `like`, contiguous.
  Layout(const View& like, int64_t count, int32_t type) : dims(count), type(type) {
    for (int64_t d = count - 1, stride = 1; d >= 0; stride *= sizes[d--]) {
      sizes[d] = like.sizes[d];
      strides[d] = stride;
    }
  }
  // As empty_dense_like in qacg_kernels/operators/schema.py.
  static Layout dense(const View& like) {
    Layout made(like, like.dims, like.type);
    if (like.dims == 4 && like.strides[1] < like.strides[2]) {
      made.strides[1] = made.sizes[3];
      made.strides[2] = made.sizes[1] * made.sizes[3];
    }
    return made;
  }
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d = 0; d < dims; ++d) n *= sizes[d];
    return n;
  }
};

constexpr int32_t kFloat32 = static_cast<int32_t>(ScalarType::Float);
constexpr int64_t kMostHeadDim = 256;
constexpr int64_t kPiece = 64;  // floats; parts of a shared buffer start at multiples of it

inline int64_t whole_pieces(int64_t floats) { return (floats + kPiece - 1) / kPiece * kPiece; }
inline int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

// The tensors and options of a call, and the slots made of them.
class Call {
 public:
  View views[kGiven];
  Options options{};
  int64_t max_seqlen = 0;
  bool backward = false;
  int32_t device_type = 0, device = 0;

  bool here[kFields] = {};  // whether the call has a field
  Layout layouts[kFields];  // of the fields that the call allocates
  int64_t slots[kSlots];  // valid for fields that are here
  std::vector<Tensor> kept;  // owns copies and buffers
  AtenTensorHandle made[kFields] = {};  // owned until `take`

  Call() = default;
  Call(const Call&) = delete;
  ~Call() {
    for (AtenTensorHandle t : made) {
      if (t) aoti_torch_delete_tensor_object(t);
    }
  }

  bool packed() const { return views[kOffsets].has_value(); }
  int64_t scalar(Scalar s) const { return slots[kFields * kMembers + s]; }
  bool has_vectors() const { return !views[kLambda]; }
  int64_t* members(int field) { return slots + field * kMembers; }

  // Returns the first error in the arguments, or "".
  std::string wrong() const {
    const View* v = views;
    struct {
      const View &query, &key, &value, &context_query, &context_key, &gate_lambda, &gate_query, &gate_context_query,
          &gate_key, &gate_context_key, &gate_query_bias, &gate_context_query_bias, &gate_key_bias,
          &gate_context_key_bias, &attn_mask, &key_lengths, &cu_seqlens, &dropout_seed, &quasi_bias;
      double dropout_p;
      GateForm gate_form;
      // clang-format off: not one a line
    } const arguments{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12], v[13], v[14],
                      v[15], v[16], v[17], v[18], options.dropout_p, options.gate_form};
    // clang-format on
    for (int f = 0; f < kGiven; ++f) {
      if (!views[f]) continue;
      int32_t type = 0, index = 0;
      TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(views[f].handle, &type));
      TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(views[f].handle, &index));
      if (type != device_type || index != device) return "expected all tensors on query's device, got another";
    }
    std::string error = wrong_arguments(arguments);
    if (!error.empty() || !backward) return error;
    error = wrong_gradients(arguments, v[kGradOut], v[kGradQueryGate], v[kGradKeyGate], v[kSoftmaxOut], v[kRowMax],
                            v[kRowSum], v[kQueryGate], v[kKeyGate]);
    if (error.empty() && v[kQuasiOut] && !v[kQuasiOut].same_as(v[kQuery])) error = "quasi_out: expected query's shape";
    return error;
  }

  // Fills in sizes, scalars, and the strides of all fields; copies tensors whose last stride is not 1.
  void describe() {
    const View &query = views[kQuery], &key = views[kKey];
    int64_t* scalars = slots + kFields * kMembers;
    const int64_t last = query.dims - 1;
    if (std::isnan(options.scale)) options.scale = std::pow(query.sizes[last], -0.5);
    scalars[kHeads] = query.sizes[1];
    scalars[kHeadDim] = query.sizes[last];
    scalars[kTokens] = packed() ? query.sizes[0] : 0;
    scalars[kQueries] = packed() ? max_seqlen : query.sizes[2];
    scalars[kKeys] = packed() ? max_seqlen : key.sizes[2];
    scalars[kSequences] = packed() ? views[kOffsets].sizes[0] - 1 : query.sizes[0];
    const uint32_t threshold = drop_threshold(options.dropout_p);
    scalars[kThreshold] = threshold;
    number(kScale, options.scale);
    number(kScore, options.scale * 1.4426950408889634);  // log2(e), because the kernels compute exp2
    number(kQuasi, options.quasi_scale);
    number(kKeep, static_cast<double>(kDropoutDraws) / (kDropoutDraws - threshold));
    number(kBeta, options.beta);
    number(kGamma, options.gamma);
    for (int f = 0; f < kGiven; ++f) {
      if (views[f] && (f != kSeed || options.dropout_p > 0)) given(static_cast<Field>(f));
    }
    if (!backward) {
      allocated(kOut, Layout::dense(query));
      for (const Field f : {kRowMax, kRowSum}) allocated(f, Layout(query, last, kFloat32));
      if (!has_vectors()) return;
      allocated(kQueryGate, Layout(query, last, kFloat32));
      allocated(kKeyGate, Layout(options.column_gate() ? key : query, last, kFloat32));
      return;
    }
    for (int f = 0; f < kDifferentiable; ++f) {
      const View& t = views[f];
      if (!t) continue;
      const Layout contiguous(t, t.dims, t.type);
      allocated(static_cast<Field>(kFirstGradient + f), f <= kContextKey ? Layout::dense(t) : contiguous);
    }
    for (const Field f : {kQueryLogit, kDelta, kShift, kWeight}) allocated(f, Layout(query, last, kFloat32));
    allocated(kKeyLogit, Layout(options.column_gate() ? key : query, last, kFloat32));
    here[kSums] = true;
    std::fill_n(members(kSums), kMembers, 0);
  }

  // Makes the tensor of a field.
  void allocate(Field f) { made[f] = empty(layouts[f], members(f)); }

  // Passes on the ownership of a field's tensor; without one, of an empty tensor.
  AtenTensorHandle take(Field f, int32_t type) {
    if (made[f]) return std::exchange(made[f], nullptr);
    Layout none;
    none.dims = 1;
    none.type = type;
    int64_t address = 0;
    return empty(none, &address);
  }

  // Makes one buffer of which each of these float32 fields gets a part.
  void share(const std::vector<Field>& fields) {
    Layout whole;
    whole.dims = 1;
    whole.strides[0] = 1;
    whole.type = kFloat32;
    for (const Field f : fields) whole.sizes[0] += whole_pieces(layouts[f].numel());
    int64_t address = 0;
    kept.emplace_back(empty(whole, &address));
    for (const Field f : fields) {
      members(f)[0] = address;
      address += whole_pieces(layouts[f].numel()) * static_cast<int64_t>(sizeof(float));
    }
  }

  // The branch outputs of a forward, of which bit 0 and bit 1 of `saves` say whether they are saved.
  void describe_saved(int saves) {
    if (saves & 1) allocated(kSoftmaxOut, Layout::dense(views[kQuery]));
    if (saves & 2) allocated(kQuasiOut, Layout::dense(views[kQuery]));
  }

  // The partial sums of the gate's gradients, as `gate_sums_kernel` of backends/triton/gates.py writes them.
  void describe_sums(int64_t rows, int64_t columns) {
    const int64_t chunks = ceil_div(scalar(kQueries), rows) + ceil_div(scalar(kKeys), rows);
    layouts[kSums].dims = 1;
    layouts[kSums].sizes[0] = scalar(kSequences) * scalar(kHeads) * chunks * columns;
  }

  // Whether plans serve calls like this one: those without rows or keys run in Python, and others no kernel supports.
  bool is_served() const {
    const View& query = views[kQuery];
    const ScalarType type = query.scalar_type();
    if (query.sizes[query.dims - 1] > kMostHeadDim) return false;
    if (type != ScalarType::BFloat16 && type != ScalarType::Half && type != ScalarType::Float) return false;
    if (packed() && (max_seqlen < 1 || views[kOffsets].sizes[0] < 2)) return false;
    return query.numel() && views[kKey].numel();
  }

 private:
  void number(Scalar s, double value) {
    const float rounded = static_cast<float>(value);
    slots[kFields * kMembers + s] = std::bit_cast<uint32_t>(rounded);
  }

  void strided(int64_t* to, const int64_t* strides) const {
    to[kBatch] = packed() ? 0 : strides[0];
    to[kHead] = strides[1];
    to[kRow] = strides[packed() ? 0 : 2];
    to[kColumn] = 0;
  }

  void allocated(Field f, const Layout& layout) {
    here[f] = true;
    layouts[f] = layout;
    members(f)[0] = 0;  // aligned
    if (f >= kGradGateQuery && f <= kGradGateContextKeyBias) {
      per_head(f, layout.dims, layout.sizes, layout.strides, f < kGradGateQueryBias);
    } else {
      strided(members(f), layout.strides);
    }
  }

  // A gate vector (D), (1, D) or (H, D), or a bias (), (1) or (H).
  void per_head(Field f, int64_t dims, const int64_t* sizes, const int64_t* strides, bool is_vector) {
    int64_t* to = members(f);
    std::fill_n(to + 1, kMembers - 1, 0);
    to[kHead] = dims == is_vector || sizes[0] == 1 ? 0 : strides[0];
  }

  void given(Field f) {
    View& t = views[f];
    const bool wide = f <= kContextKey || f == kGradOut || f == kSoftmaxOut || f == kQuasiOut;
    const bool vector = f >= kGateQuery && f <= kGateContextKey;
    if ((wide || vector) && !t.has_dense_rows()) {
      Layout layout(t, t.dims, t.type);
      int64_t address = 0;
      const Tensor& copy = kept.emplace_back(Tensor(empty(wide ? Layout::dense(t) : layout, &address)));
      TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(copy.get(), t.handle, /*non_blocking=*/false));
      t = View(copy.get());
    }
    here[f] = true;
    int64_t* to = members(f);
    to[0] = reinterpret_cast<int64_t>(t.data);
    if (f == kMask || f == kQuasiBias) {
      const View& query = views[kQuery];
      int64_t strides[4] = {};
      for (int64_t d = 0; d < t.dims; ++d) {
        // A mask has stride 0 in every dimension of size 1, a bias where it is expanded.
        strides[d] = t.sizes[d] == 1 && (f == kMask || query.sizes[d] != 1) ? 0 : t.strides[d];
      }
      if (f == kMask) {
        std::copy_n(strides, 4, to + kBatch);
      } else {
        strided(to, strides);
      }
    } else if (f == kKeyLengths || f == kOffsets || f == kSeed) {
      std::fill_n(to + 1, kMembers - 1, 0);
      to[kBatch] = t.dims ? t.strides[0] : 0;
    } else if (f >= kGateQuery && f <= kGateContextKeyBias) {
      per_head(f, t.dims, t.sizes, t.strides, f < kGateQueryBias);
    } else {
      strided(to, t.strides);
    }
  }

  AtenTensorHandle empty(const Layout& l, int64_t* address) const {
    AtenTensorHandle handle = nullptr;
    if (aoti_torch_empty_strided(l.dims, l.sizes, l.strides, l.type, device_type, device, &handle)) {
      refuse("quasi-attention: expected memory for ", l.numel(), " elements, got none from torch, which printed why. ",
             "If memory is short, use a smaller batch");
    }
    void* data = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle, &data));
    *address = reinterpret_cast<int64_t>(data);
    return handle;
  }
};

}  // namespace qacg::launch

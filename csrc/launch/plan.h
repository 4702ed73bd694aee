// Prepared launches: what the kernels of a call are launched with, except for the values of their arguments. Calls that
// Triton specialises kernels for in the same way share a plan.
#pragma once

#include <atomic>
#include <cstring>
#include <sstream>
#include <string_view>

#include "../common/first_calls.h"
#include "call.h"
#include "driver.h"

namespace qacg::launch {

// Everything that decides which machine code a call runs, and on which path: see `variant_of` and `LaunchPlan` of the
// Python code. Saved branch outputs are bits of `saves`: kSaves for O1, 2 kSaves for O2, or kChoose for those that the
// backend chooses.
constexpr int kChoose = 4;

struct Key {
  static constexpr int kMost = 32;
  uint64_t words[kMost];
  int count = 0;
  uint64_t hash = 0;

  void add(uint64_t word) {
    words[count++] = word;
    first_calls::mix(hash, word);
  }
  bool operator==(const Key& other) const {
    return hash == other.hash && count == other.count && !std::memcmp(words, other.words, 8 * count);
  }
};

inline uint64_t log2_ceil(int64_t n) { return n > 1 ? std::bit_width(static_cast<uint64_t>(n - 1)) : 0; }

// How Triton specialises an integer: 1 is a constant, multiples of 16 are known, and others have 32 or 64 bits.
inline uint64_t trait(int64_t n) { return n == 1 ? 1 : (n % 16 == 0 ? 2 : 0) | (n == static_cast<int32_t>(n) ? 0 : 4); }

inline Key key_of(const Call& c, int saves) {
  Key key;
  const Options& o = c.options;
  const int64_t keys = c.scalar(kKeys), queries = c.scalar(kQueries);
  const bool key_mask = c.views[kMask] && c.slots[kMask * kMembers + kRow] == 0;
  uint64_t bits = c.backward;
  // A smaller scale may be flushed to 0 (`_LEAST_FOLDED` of launch.py).
  for (const bool bit : {o.is_causal, o.column_gate(), o.tf32, o.dropout_p > 0, o.scale > 1e-30, key_mask}) {
    bits = bits << 1 | bit;
  }
  key.add(bits << 4 | saves | static_cast<uint64_t>(c.device) << 32);
  key.add(first_calls::generation);  // of another one, plans are obsolete
  uint64_t present = 0, aligned = 0;
  for (int f = 0; f < kFields; ++f) {
    present |= static_cast<uint64_t>(c.here[f]) << f;
    if (c.here[f]) aligned |= static_cast<uint64_t>(c.slots[f * kMembers] % 16 == 0) << f;
  }
  key.add(present);
  key.add(aligned);
  uint64_t types = 0;
  for (const Field f : {kQuery, kGateQuery, kMask, kKeyLengths, kOffsets}) types = types << 6 | c.views[f].type;
  key.add(types);
  // Tiles have up to 128 keys. The last two sizes select no code, but belong to a variant of the self-check
  // (`variant_of`).
  uint64_t sizes = static_cast<uint64_t>(std::min<int64_t>(keys & -keys, 128));
  for (const int64_t n : {queries, keys, c.scalar(kSequences) * c.scalar(kHeads), c.scalar(kTokens)}) {
    sizes = sizes << 6 | log2_ceil(n);
  }
  key.add(sizes << 16 | static_cast<uint64_t>(c.scalar(kHeadDim)));
  uint64_t traits = 1;
  const auto add = [&](int64_t n) {
    traits = traits << 3 | trait(n);
    if (traits >> 60) key.add(std::exchange(traits, 1));
  };
  for (int s = 0; s < kIntegers; ++s) add(c.scalar(static_cast<Scalar>(s)));
  for (int f = 0; f < kFields; ++f) {
    if (!c.here[f]) continue;
    for (int m = 1; m < kMembers; ++m) add(c.slots[f * kMembers + m]);
  }
  key.add(traits);
  return key;
}

// What the number of a kernel's programs is proportional to.
enum class Over { kQueries, kKeys, kChunks, kHeads };

struct Kernel {
  void* function = nullptr;
  unsigned threads = 0, shared = 0;
  Over over = Over::kQueries;
  int64_t per = 1;  // rows of a program; for heads, programs of a head
  std::vector<uint16_t> slots;
};

struct Plan {
  std::vector<Kernel> kernels;
  int saves = 0;  // as in `key_of`
  uint64_t uses = 0;  // the fields that are arguments of the kernels
  int64_t sum_rows = 1, sum_columns = 0;  // of the gate's partial sums
  std::atomic<bool> passed{false};  // whether the self-check has passed
};

struct Path {
  std::string_view name;
  int number;
};
// clang-format off: not one name a line
constexpr Path kFieldPaths[] = {
    {"call.query", kQuery}, {"call.key", kKey}, {"call.value", kValue},
    {"call.context_query", kContextQuery}, {"call.context_key", kContextKey}, {"call.gate_lambda", kLambda},
    {"call.gate.query.vector", kGateQuery}, {"call.gate.query.context_vector", kGateContextQuery},
    {"call.gate.key.vector", kGateKey}, {"call.gate.key.context_vector", kGateContextKey},
    {"call.gate.query.bias", kGateQueryBias}, {"call.gate.query.context_bias", kGateContextQueryBias},
    {"call.gate.key.bias", kGateKeyBias}, {"call.gate.key.context_bias", kGateContextKeyBias},
    {"call.mask", kMask}, {"call.key_lengths", kKeyLengths}, {"call.cu_seqlens", kOffsets}, {"call.seed", kSeed},
    {"call.quasi_bias", kQuasiBias},
    {"saved.grad_out", kGradOut}, {"saved.grad_query_gate", kGradQueryGate}, {"saved.grad_key_gate", kGradKeyGate},
    {"saved.softmax_out", kSoftmaxOut}, {"saved.quasi_out", kQuasiOut}, {"saved.row_max", kRowMax},
    {"saved.row_sum", kRowSum}, {"saved.query_gate", kQueryGate}, {"saved.key_gate", kKeyGate},
    {"out", kOut}, {"softmax_out", kSoftmaxOut}, {"quasi_out", kQuasiOut}, {"row_max_out", kRowMax},
    {"row_sum_out", kRowSum}, {"query_gate", kQueryGate}, {"key_gate", kKeyGate},
    {"grads.query", kGradQuery}, {"grads.key", kGradKey}, {"grads.value", kGradValue},
    {"grads.context_query", kGradContextQuery}, {"grads.context_key", kGradContextKey},
    {"grads.gate_lambda", kGradLambda},
    {"gradients.query.vector", kGradGateQuery}, {"gradients.query.context_vector", kGradGateContextQuery},
    {"gradients.key.vector", kGradGateKey}, {"gradients.key.context_vector", kGradGateContextKey},
    {"gradients.query.bias", kGradGateQueryBias}, {"gradients.query.context_bias", kGradGateContextQueryBias},
    {"gradients.key.bias", kGradGateKeyBias}, {"gradients.key.context_bias", kGradGateContextKeyBias},
    {"grads.query_logit", kQueryLogit}, {"grads.key_logit", kKeyLogit}, {"query_logit", kQueryLogit},
    {"key_logit", kKeyLogit}, {"grads.delta", kDelta}, {"grads.shift", kShift}, {"grads.weight", kWeight},
    {"sums", kSums}};
constexpr Path kScalarPaths[] = {
    {"call.sizes.heads", kHeads}, {"call.sizes.queries", kQueries}, {"call.sizes.keys", kKeys},
    {"call.sizes.head_dim", kHeadDim}, {"call.sizes.tokens", kTokens}, {"sequences", kSequences},
    {"call.factors.threshold", kThreshold}, {"call.factors.scale", kScale}, {"call.factors.score", kScore},
    {"call.factors.quasi", kQuasi}, {"call.factors.keep", kKeep}, {"call.gate.beta", kBeta},
    {"call.gate.gamma", kGamma}, {"gradients.beta", kBeta}, {"gradients.gamma", kGamma}};
constexpr Path kMemberPaths[] = {{"data", 0}, {"batch", kBatch}, {"step", kBatch}, {"head", kHead}, {"row", kRow},
                                 {"column", kColumn}};
constexpr Path kOverPaths[] = {{"queries", 0}, {"keys", 1}, {"chunks", 2}, {"heads", 3}};
// clang-format on

template <size_t count>
int number_of(const Path (&paths)[count], std::string_view name) {
  for (const Path& path : paths) {
    if (path.name == name) return path.number;
  }
  return -1;
}

// The slot of a kernel's argument by its path, such as call.query.batch; throws an error for an unknown path, or for a
// type that the slot does not have.
inline int slot_of(const std::string& type, const std::string& path) {
  int slot = -1;
  char kind = 'i';
  if (const int scalar = number_of(kScalarPaths, path); scalar >= 0) {
    slot = kFields * kMembers + scalar;
    if (scalar >= kIntegers) kind = 'f';
  } else if (const int whole = number_of(kFieldPaths, path); whole >= 0) {
    slot = whole * kMembers;
    kind = '*';
  } else if (const size_t dot = path.rfind('.'); dot != std::string::npos) {
    const int field = number_of(kFieldPaths, path.substr(0, dot));
    const int member = number_of(kMemberPaths, path.substr(dot + 1));
    if (field >= 0 && member >= 0) slot = field * kMembers + member;
    if (member == 0) kind = '*';
  }
  require(slot >= 0 && !type.empty() && type[0] == kind, "launch plan: expected an argument of the kernels, got ", type,
          " ", path);
  return slot;
}

// Reads the text that backends/triton/first_calls.py writes.
inline Plan* parse_plan(const std::string& text) {
  auto plan = std::make_unique<Plan>();
  std::istringstream words(text);
  std::string word, path;
  while (words >> word) {
    if (word == "saves") {
      words >> plan->saves;
    } else if (word == "sums") {
      words >> plan->sum_rows >> plan->sum_columns;
    } else if (word == "kernel") {
      Kernel& k = plan->kernels.emplace_back();
      uint64_t function = 0;
      words >> function >> k.threads >> k.shared >> path >> k.per;
      k.function = reinterpret_cast<void*>(function);
      k.over = static_cast<Over>(number_of(kOverPaths, path));
    } else {
      words >> path;
      const int slot = slot_of(word, path);
      plan->kernels.back().slots.push_back(static_cast<uint16_t>(slot));
      if (slot < kFields * kMembers) plan->uses |= uint64_t{1} << slot / kMembers;
    }
  }
  return plan.release();
}

// The plans by their keys. They are never freed, because a thread may be reading one.
struct Entry {
  Key key;
  Plan* plan;
};
constexpr uint64_t kPlaces = 1 << 16, kProbes = 16, kMostPlans = kPlaces / 2;
inline std::atomic<Entry*> entries[kPlaces];
inline std::atomic<uint64_t> plans{0};
// While Triton's launch hooks are in use, no call is prepared, since Python calls them.
inline std::atomic<bool> paused{false};

inline std::atomic<Entry*>& place(const Key& key, uint64_t probe) { return entries[(key.hash + probe) % kPlaces]; }

inline Plan* find(const Key& key) {
  if (paused) return nullptr;
  for (uint64_t probe = 0; probe < kProbes; ++probe) {
    const Entry* entry = place(key, probe).load(std::memory_order_acquire);
    if (!entry) return nullptr;
    if (entry->key == key) return entry->plan;
  }
  return nullptr;
}

// Adds a plan, or replaces that of the same key. Returns whether there was a place.
inline bool add(const Key& key, Plan* plan) {
  if (plans++ >= kMostPlans) return false;
  Entry* made = new Entry{key, plan};
  for (uint64_t probe = 0; probe < kProbes; ++probe) {
    Entry* found = place(key, probe).load(std::memory_order_acquire);
    while (!found || found->key == key) {
      if (place(key, probe).compare_exchange_weak(found, made, std::memory_order_acq_rel)) return true;
    }
  }
  return false;
}

// Launches the kernels of a plan on the current stream of the call's device.
inline void launch(const Plan& plan, Call& call) {
  const CurrentStream stream(call.device_type, call.device);
  const int64_t heads = call.scalar(kHeads), pairs = heads * call.scalar(kSequences);
  const int64_t queries = call.scalar(kQueries), keys = call.scalar(kKeys);
  for (const Kernel& k : plan.kernels) {
    int64_t programs = k.per * heads;
    if (k.over == Over::kQueries) programs = ceil_div(queries, k.per) * pairs;
    if (k.over == Over::kKeys) programs = ceil_div(keys, k.per) * pairs;
    if (k.over == Over::kChunks) programs = (ceil_div(queries, k.per) + ceil_div(keys, k.per)) * pairs;
    void* parameters[192];
    int count = 0;
    for (const uint16_t slot : k.slots) parameters[count++] = &call.slots[slot];
    // Triton's two pointers to scratch memory, which these kernels do not use.
    int64_t none = 0;
    parameters[count] = parameters[count + 1] = &none;
    stream.launch(k.function, static_cast<unsigned>(programs), k.threads, k.shared, parameters);
  }
}

}  // namespace qacg::launch

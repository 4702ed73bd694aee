// The self-check of compiled operators (qacg_kernels/operators/self_check.py). A call runs directly if a call like it
// has passed the check. Any other call runs through the operator NAME_first_call, which Python implements.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/util/Exception.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace qacg::first_calls {

// An operator of qacg_kernels/operators/schema.py: its name, and for each argument whether it is a tensor (t), an
// optional tensor (o) or a value (v).
struct Operator {
  const char *name, *arguments;
};

inline constexpr char kForward[] = "tttttoooooooooooooovvvvvvvvvv";
inline constexpr char kBackward[] = "tootttttoooooooooooooottttttvvvvvvvv";

// The namespace of the operators while the check is on, else null.
inline std::atomic<const char*> checked_in{nullptr};
// Whether this thread is inside a check, whose own launches run directly.
inline thread_local bool checking = false;
// Hashes of the calls that have passed, each at the place that its low bits give. Two calls with the same place evict
// each other, and an evicted call runs through Python once more. Atomics instead of a lock, because a process may fork
// while another thread calls.
inline constexpr uint64_t kPlaces = 1 << 14;
inline std::atomic<uint64_t> passed[kPlaces];

// The number of calls of `check_in`. Every hash includes it, so a check that began before the last of them lets no
// later call pass.
inline std::atomic<uint64_t> generation{0};

// Turns the check on, or off if `operators` is null, and forgets which calls have passed. `operators` is the namespace
// of the operators; the text must stay in memory.
inline void check_in(const char* operators) {
  ++generation;
  checked_in = operators;
}

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;

inline void mix(uint64_t& hash, uint64_t word) {
  hash = (hash ^ word) * kOdd;
  hash ^= hash >> 32;
}

// Mixes in the device of a tensor; the operators require one device for all tensors.
inline void mix_device(uint64_t& hash, AtenTensorHandle t) {
  int32_t type = 0, index = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(t, &type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(t, &index));
  mix(hash, static_cast<uint64_t>(type) << 32 ^ index);
}

inline void mix_tensor(uint64_t& hash, AtenTensorHandle t) {
  int32_t type = 0;
  int64_t dims = 0, *sizes = nullptr, *strides = nullptr;
  void* data = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(t, &type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(t, &dims));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(t, &sizes));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(t, &strides));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(t, &data));
  mix(hash, static_cast<uint64_t>(type) << 32 | dims << 8 | reinterpret_cast<uintptr_t>(data) % 16);
  for (int64_t d = 0; d < dims; ++d) mix(hash, sizes[d] * kOdd + strides[d]);
}

// A hash of a call's device, dtypes, sizes, strides, alignment and options. Calls with equal hashes have one kernel
// variant. It does not include torch's switches (determinism, TF32), because the kernels do not read them.
inline uint64_t signature(const Operator& op, const StableIValue* stack) {
  uint64_t hash = reinterpret_cast<uintptr_t>(op.name);
  mix(hash, generation);
  mix_device(hash, reinterpret_cast<AtenTensorHandle>(*stack));
  for (const char* kind = op.arguments; *kind; ++kind, ++stack) {
    const auto* given = *kind == 'o' ? reinterpret_cast<const StableIValue*>(*stack) : stack;
    mix(hash, given == nullptr);
    if (given && *kind == 'v') mix(hash, *given);
    if (given && *kind != 'v') mix_tensor(hash, reinterpret_cast<AtenTensorHandle>(*given));
  }
  return hash | 1;
}

// Runs a call through the check. Returns whether calls like it need no further check; throws the error of the check.
inline bool passes_check(const Operator& op, const char* operators, StableIValue* stack, uint64_t outputs) {
  checking = true;
  const std::string name = std::string(operators) + "::" + op.name + "_first_call";
  const AOTITorchError failed = aoti_torch_call_dispatcher(name.c_str(), "", stack);
  checking = false;
  TORCH_ERROR_CODE_CHECK(failed);
  // The result after the outputs is a text as a tensor of bytes: "passed", "" if later calls still need the check, or
  // an error message, in which case the outputs are empty. The text is a tensor because torch would return results of
  // several types in reverse order.
  const auto tensor = [stack](uint64_t n) { return reinterpret_cast<AtenTensorHandle>(stack[n]); };
  int64_t length = 0;
  void* text = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_numel(tensor(outputs), &length));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(tensor(outputs), &text));
  const std::string result(static_cast<const char*>(text), length);
  TORCH_ERROR_CODE_CHECK(aoti_torch_delete_tensor_object(tensor(outputs)));
  if (result.empty() || result == "passed") return !result.empty();
  for (uint64_t n = 0; n < outputs; ++n) TORCH_ERROR_CODE_CHECK(aoti_torch_delete_tensor_object(tensor(n)));
  throw std::runtime_error(result);
}

// The boxed kernel of an operator: runs the check if it is required, else `run`.
template <void (*run)(StableIValue*, uint64_t, uint64_t), const Operator& op>
void checked(StableIValue* stack, uint64_t inputs, uint64_t outputs) {
  const char* operators = checked_in;
  if (!operators || checking) return run(stack, inputs, outputs);
  const uint64_t hash = signature(op, stack);
  std::atomic<uint64_t>& place = passed[hash >> 1 & (kPlaces - 1)];
  if (place == hash) return run(stack, inputs, outputs);
  if (passes_check(op, operators, stack, outputs)) place = hash;
}

}  // namespace qacg::first_calls

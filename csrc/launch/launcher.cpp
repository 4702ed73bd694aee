// The operators of the Triton backend: they launch the kernels that Triton has compiled, without Python. A call whose
// launches are not prepared runs through Python (qacg_kernels/backends/triton/prepared.py), which prepares them.

#include <torch/csrc/stable/library.h>

#include <memory>
#include <mutex>

#include "plan.h"

namespace qacg::launch {
namespace {

using first_calls::Operator;
using torch::stable::detail::to;

constexpr Operator kForward{"triton_attention", first_calls::kForward},
    kBackward{"triton_attention_backward", first_calls::kBackward};

// Bits of the argument `present` of the compact operators after those of the given fields.
constexpr int64_t kIsBackward = int64_t{1} << 40, kIsTraining = int64_t{1} << 41;

// Options of compact calls, by number; entries are never changed. Further ones, as of a scale that changes in each
// step, run from Python.
constexpr int64_t kMostOptions = 1 << 16;
Options options_by_number[kMostOptions];
std::atomic<int64_t> option_count{0};
// Whether float32 products are in TF32, for calls of the operators inside of a check.
std::atomic<bool> tf32{false};

void set_device(Call& c) {
  const AtenTensorHandle query = c.views[kQuery].handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(query, &c.device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(query, &c.device));
}

// The field of an operator's argument.
Field field_of(const Operator& op, int argument) {
  if (&op == &kForward) return static_cast<Field>(argument);
  constexpr int kUpstream = kSoftmaxOut - kGradOut;
  if (argument < kUpstream) return static_cast<Field>(kGradOut + argument);
  argument -= kUpstream;
  return static_cast<Field>(argument < kInputs ? argument : kSoftmaxOut + argument - kInputs);
}

// Reads an operator's arguments, which the stack keeps. Returns the branch outputs that it saves.
int read(Call& c, const Operator& op, const StableIValue* stack) {
  int argument = 0;
  for (; op.arguments[argument] != 'v'; ++argument) {
    const auto* given = stack + argument;
    if (op.arguments[argument] == 'o') given = reinterpret_cast<const StableIValue*>(*given);
    if (!given) continue;
    const View view(reinterpret_cast<AtenTensorHandle>(*given));
    const Field field = field_of(op, argument);
    // An absent result of the forward has the shape (0,).
    if (field < kSoftmaxOut || view.dims != 1 || view.sizes[0]) c.views[field] = view;
  }
  const StableIValue* values = stack + argument;
  c.backward = &op == &kBackward;
  c.max_seqlen = to<int64_t>(values[0]);
  c.options = {to<bool>(values[1]),   tf32,
               to<double>(values[2]), to<double>(values[3]),
               to<double>(values[4]), to<double>(values[5]),
               to<double>(values[6]), static_cast<GateForm>(to<int64_t>(values[7]))};
  set_device(c);
  return c.backward ? 0 : to<bool>(values[8]) + 2 * to<bool>(values[9]);
}

// Frees the arguments on the stack, as the operator has to.
void release(const Operator& op, StableIValue* stack) {
  for (const char* kind = op.arguments; *kind != 'v'; ++kind, ++stack) {
    auto* given = *kind == 'o' ? reinterpret_cast<StableIValue*>(*stack) : stack;
    if (!given) continue;
    aoti_torch_delete_tensor_object(reinterpret_cast<AtenTensorHandle>(*given));
    if (given != stack) delete given;
  }
}

// Makes the gradients and the scratch memory of a backward, and launches it.
void run_backward(const Plan& plan, Call& c) {
  for (int f = kFirstGradient; f < kQueryLogit; ++f) {
    if (c.here[f]) c.allocate(static_cast<Field>(f));
  }
  if (plan.uses >> kSums & 1) c.describe_sums(plan.sum_rows, plan.sum_columns);
  std::vector<Field> scratch;
  for (int f = kQueryLogit; f < kFields; ++f) {
    if (plan.uses >> f & 1) scratch.push_back(static_cast<Field>(f));
  }
  if (!scratch.empty()) c.share(scratch);
  launch(plan, c);
}

void run_forward(const Plan& plan, Call& c) {
  c.describe_saved(plan.saves);
  for (int f = kSoftmaxOut; f <= kOut; ++f) {
    if (c.here[f]) c.allocate(static_cast<Field>(f));
  }
  launch(plan, c);
}

template <bool backward>
void attention(StableIValue* stack, uint64_t /*inputs*/, uint64_t outputs) {
  const Operator& op = backward ? kBackward : kForward;
  Key key;
  bool served = false;
  try {
    Call c;
    const int saves = read(c, op, stack);
    const std::string wrong = c.wrong();
    require(wrong.empty(), wrong);
    served = c.is_served();
    const Plan* plan = nullptr;
    if (served) {
      c.describe();
      key = key_of(c, saves);
      plan = find(key);
    }
    // Torch's switch for TF32 is known in Python only.
    const bool is_open = plan && plan->passed && c.views[kQuery].type != kFloat32;
    if (first_calls::checking || is_open) {
      require(plan, "backend 'triton': expected a prepared launch, got none");
      (backward ? run_backward : run_forward)(*plan, c);
      AtenTensorHandle results[kQueryLogit - kFirstGradient];
      const int first = backward ? kFirstGradient : kSoftmaxOut;
      for (uint64_t n = 0; n < outputs; ++n) {
        const int f = backward || n ? first + static_cast<int>(n) - !backward : kOut;
        const bool is_row = f > kQuasiOut && f < kOut;
        results[n] = c.take(static_cast<Field>(f), is_row ? kFloat32 : c.views[kQuery].type);
      }
      release(op, stack);
      for (uint64_t n = 0; n < outputs; ++n) stack[n] = torch::stable::detail::from(results[n]);
      return;
    }
  } catch (...) {
    release(op, stack);
    throw;
  }
  const bool passed = first_calls::passes_check(op, first_calls::checked_in, stack, outputs);
  Plan* plan = served && passed ? find(key) : nullptr;
  if (plan) plan->passed = true;
}

// Reads the arguments of a compact operator.
void read(Call& c, const std::vector<Tensor>& tensors, int64_t present, int64_t max_seqlen, int64_t options) {
  size_t n = 0;
  for (int f = 0; f < kGiven; ++f) {
    if (present >> f & 1 && n < tensors.size()) c.views[f] = View(tensors[n++].get());
  }
  require(c.views[kQuery].has_value() && n == tensors.size() && options < option_count,
          "triton_run: expected the tensors and options of a call, got others");
  c.max_seqlen = max_seqlen;
  c.options = options_by_number[options];
  c.backward = present & kIsBackward;
  set_device(c);
}

// A forward or backward of an ordinary call, with few arguments. A forward returns its results that are present, and a
// backward, which takes these after grad_out, the gradients of the inputs that are present. Both return nothing if the
// arguments are wrong or the launches are not prepared.
std::vector<Tensor> run(std::vector<Tensor> tensors, int64_t present, int64_t max_seqlen, int64_t options) {
  Call c;
  read(c, tensors, present, max_seqlen, options);
  if (!c.wrong().empty() || !c.is_served()) return {};
  c.describe();
  const Plan* plan = find(key_of(c, present & kIsTraining ? kChoose : 0));
  if (!plan || !plan->passed) return {};
  (c.backward ? run_backward : run_forward)(*plan, c);
  std::vector<Tensor> results;
  const auto take = [&](int f) {
    if (c.made[f]) results.emplace_back(std::exchange(c.made[f], nullptr));
  };
  take(kOut);
  for (int f = kSoftmaxOut; f < kQueryLogit; ++f) take(f);
  return results;
}

// Adds the plan that a text describes for calls like this one. A plan that saves what the backend chooses also serves
// calls that leave the choice to it. Returns whether plans serve such calls, and there was room.
bool add_plan(std::vector<Tensor> tensors, int64_t present, int64_t max_seqlen, int64_t options, bool chosen,
              Tensor text) {
  Call c;
  read(c, tensors, present, max_seqlen, options);
  const std::string wrong = c.wrong();
  require(wrong.empty(), wrong);
  if (!c.is_served()) return false;
  c.describe();
  std::unique_ptr<Plan> plan(
      parse_plan(std::string(static_cast<const char*>(text.data_ptr()), static_cast<size_t>(text.numel()))));
  // A backward without saved branch outputs runs a forward first, whose results only Python allocates.
  if (c.backward && plan->uses >> kOut & 1) return false;
  const Key key = key_of(c, plan->saves);
  if (!add(key, plan.get())) return false;
  if (chosen) add(key_of(c, kChoose), plan.get());
  plan.release();
  return true;
}

// Whether there is a plan for a call that saves these branch outputs.
bool has_plan(std::vector<Tensor> tensors, int64_t present, int64_t max_seqlen, int64_t options, int64_t saves) {
  Call c;
  read(c, tensors, present, max_seqlen, options);
  if (!c.is_served()) return false;
  c.describe();
  return find(key_of(c, static_cast<int>(saves)));
}

}  // namespace
}  // namespace qacg::launch

// For qacg_kernels/backends/triton/prepared.py.
#define QACG_EXPORTED extern "C" __attribute__((visibility("default")))

// `device` is a dispatch key of torch.
QACG_EXPORTED void qacg_launch_register(const char* operators, const char* device) {
  using namespace qacg::launch;
  using torch::stable::detail::StableLibrary;
  static std::vector<std::unique_ptr<StableLibrary>> kept;  // destroying a library would unregister its operators
  kept.push_back(std::make_unique<StableLibrary>(StableLibrary::Kind::IMPL, operators, device, __FILE__, __LINE__));
  StableLibrary& library = *kept.back();
  library.impl(kForward.name, qacg::guarded<attention<false>>);
  library.impl(kBackward.name, qacg::guarded<attention<true>>);
  library.impl("triton_run", qacg::guarded<TORCH_BOX(&run)>);
  library.impl("triton_add_plan", qacg::guarded<TORCH_BOX(&add_plan)>);
  library.impl("triton_has_plan", qacg::guarded<TORCH_BOX(&has_plan)>);
}

// Whether the library finds torch's streams, without which it cannot launch on a GPU.
QACG_EXPORTED bool qacg_launch_has_streams() { return qacg::launch::current_stream_function(); }

QACG_EXPORTED void qacg_launch_check_in(const char* operators) { qacg::first_calls::check_in(operators); }

QACG_EXPORTED void qacg_launch_pause(bool on) { qacg::launch::paused = on; }

QACG_EXPORTED void qacg_launch_tf32(bool on) { qacg::launch::tf32 = on; }

// Returns the number of an options' entry; -1 if there are too many. `numbers` are dropout_p, scale, quasi_scale, beta
// and gamma.
QACG_EXPORTED int64_t qacg_launch_options(bool is_causal, bool tf32, int64_t gate_form, const double* numbers) {
  using namespace qacg::launch;
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const int64_t number = option_count;
  if (number >= kMostOptions) return -1;
  options_by_number[number] = {is_causal,  tf32,       numbers[0], numbers[1],
                               numbers[2], numbers[3], numbers[4], static_cast<qacg::GateForm>(gate_form)};
  option_count = number + 1;
  return number;
}

// The gate's kernels, compiled once for both element types and all head sizes.
#include "gate_kernels.h"
#include "kernels.h"

namespace qacg::cuda {
namespace {

struct GateShape {
  static constexpr int kThreads = kGateThreads;
  static constexpr int64_t kShared = kGateShared;
};

}  // namespace

const char* run_key_gates(const Problem& p, void* stream) {
  return launch<key_gates, GateShape>(unit_count(p, p.key_length, kGateWarps), stream, p);
}

int64_t gate_sums_parts(const Problem& p) { return part_count(p); }

int64_t gate_sums_floats(const Problem& p) { return partial_sums_blocks(p) * gate_sums_width(p); }

const char* run_gate_sums(const Problem& p, const Gradients& g, void* stream) {
  const char* error = launch<gate_partial_sums, GateShape>(partial_sums_blocks(p), stream, p, g);
  if (error) return error;
  return launch<gate_sums, GateShape>(gate_sums_blocks(p), stream, p, g);
}

}  // namespace qacg::cuda

// The gate's kernels, compiled once for both element types and all head sizes.
#include "gate_kernels.h"
#include "kernels.h"

namespace qacg::cuda {

const char* run_key_gates(const Problem& p, void* stream) {
  return launch(key_gates, unit_count(p, p.key_length, kGateWarps), kGateThreads, 0, stream, p);
}

int64_t gate_sums_parts(const Problem& p) { return part_count(p); }

int64_t gate_sums_floats(const Problem& p) { return partial_sums_blocks(p) * gate_sums_width(p); }

const char* run_gate_sums(const Problem& p, const Gradients& g, void* stream) {
  const char* error = launch(gate_partial_sums, partial_sums_blocks(p), kGateThreads, kGateShared, stream, p, g);
  if (error) return error;
  return launch(gate_sums, gate_sums_blocks(p), kGateThreads, kGateShared, stream, p, g);
}

}  // namespace qacg::cuda

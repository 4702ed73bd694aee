// The plain path and the gate's kernels, compiled once for all element types and head sizes.
#include "gate_kernels.h"
#include "kernels.h"
#include "plain_backward.h"
#include "plain_forward.h"

namespace qacg::cuda {

const char* run_key_gates(const Problem& p, void* stream) {
  return launch(key_gates, unit_count(p, p.key_length, kGateWarps), kGateThreads, 0, stream, p);
}

const char* run_plain_forward(const Problem& p, void* stream) {
  return launch(plain::forward, unit_count(p, p.query_length, plain::kTile), plain::kThreads, plain::kForwardShared,
                stream, p);
}

const char* run_plain_backward(const Problem& p, const Gradients& g, void* stream) {
  const char* error = launch(plain::backward_rows, unit_count(p, p.query_length, plain::kTile), plain::kThreads,
                             plain::kRowsShared, stream, p, g);
  if (error) return error;
  return launch(plain::backward_keys, unit_count(p, p.key_length, plain::kTile), plain::kThreads, plain::kKeysShared,
                stream, p, g);
}

int64_t gate_sums_parts(const Problem& p) { return part_count(p); }

int64_t gate_sums_floats(const Problem& p) { return partial_sums_blocks(p) * gate_sums_width(p); }

const char* run_gate_sums(const Problem& p, const Gradients& g, void* stream) {
  const char* error = launch(gate_partial_sums, partial_sums_blocks(p), kGateThreads, kGateShared, stream, p, g);
  if (error) return error;
  return launch(gate_sums, gate_sums_blocks(p), kGateThreads, kGateShared, stream, p, g);
}

}  // namespace qacg::cuda

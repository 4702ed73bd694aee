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

int64_t gate_sums_parts(const Problem& p) {
  const int64_t rows = p.query_length > p.key_length ? p.query_length : p.key_length;
  return (rows + kPartRows - 1) / kPartRows;
}

int64_t gate_sums_floats(const Problem& p) {
  return gate_sums_parts(p) * p.sequences * p.heads * (4 * static_cast<int64_t>(p.head_dim) + 2);
}

const char* run_gate_sums(const Problem& p, const Gradients& g, void* stream) {
  const int64_t pairs = p.sequences * p.heads;
  const char* error = launch(gate_partial_sums, g.gate_parts * pairs, kGateThreads, kGateShared, stream, p, g);
  if (error) return error;
  const int64_t chunks = (p.head_dim + kWarp - 1) / kWarp;
  // Shared parameters have a gradient of 0 if there are no heads.
  const int64_t heads = p.heads > 0 ? p.heads : 1;
  return launch(gate_sums, kGateItems * chunks * heads, kGateThreads, kGateShared, stream, p, g);
}

}  // namespace qacg::cuda

// The gate's kernels: the column gate's key side before the forward, and the gradients of the gate vectors and biases
// after the backward, summed in a fixed order.
#pragma once

#include "gates.h"

namespace qacg::cuda {

constexpr int kGateThreads = 256, kGateWarps = kGateThreads / kWarp;
constexpr int kPartRows = 512;  // rows in one partial sum
constexpr int kGateItems = 6;   // four vectors and two biases
constexpr int64_t kGateShared = kGateThreads * sizeof(float);

// One warp for each key: lk of the column gate.
QACG_KERNEL(kGateThreads, 2) key_gates(QACG_PARAMETER Problem p) {
  const Unit unit = unit_of(p, p.key_length, kGateWarps);
  const int j = unit.first + thread_index() / kWarp;
  if (j >= unit.sequence.all_keys) return;
  const float gate = gate_of_row(p, unit.sequence, j, kKeySide);
  if (thread_index() % kWarp == 0) at(p.key_gate, unit.sequence, j) = gate;
}

// Returns the sum over the block's warps of the values x at this thread's lane. Has two barriers, one at its start.
QACG_DEVICE float sum_over_warps(float x, float* shared) {
  synchronise_block();
  shared[thread_index()] = x;
  synchronise_block();
  float total = 0.0f;
  for (int w = 0; w < kGateWarps; ++w) total += shared[w * kWarp + thread_index() % kWarp];
  return total;
}

// Rows that a warp reads before it adds them: one row at a time waits for memory (155 us of a step of 546 on an H200).
constexpr int kRowsAtOnce = 8;

QACG_DEVICE float sum_of(const float (&x)[kRowsAtOnce]) {
  float total = 0.0f;
#pragma unroll
  for (int n = 0; n < kRowsAtOnce; ++n) total += x[n];
  return total;
}

QACG_DEVICE int64_t gate_sums_width(const Problem& p) { return 4 * static_cast<int64_t>(p.head_dim) + 2; }

// Eq. 14, dv = sum of t X: a block stores the partial sums over kPartRows rows of one sequence and head.
QACG_KERNEL(kGateThreads, 2) gate_partial_sums(QACG_PARAMETER Problem p, QACG_PARAMETER Gradients g) {
  const int64_t pairs = p.sequences * p.heads, pair = block_index() % pairs;
  const Sequence s = sequence_of(p, pair / p.heads, pair % p.heads);
  const int first = static_cast<int>(block_index() / pairs) * kPartRows;
  float* shared = reinterpret_cast<float*>(shared_memory());
  float* sums = g.gate_sums + block_index() * gate_sums_width(p);
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  for (int side = kQuerySide; side <= kKeySide; ++side) {
    const Rows& logits = side == kQuerySide ? g.query_logit : g.key_logit;
    const int all = side == kKeySide && p.column_gate ? s.all_keys : s.queries;
    const int last = all < first + kPartRows ? all : first + kPartRows;
    float bias = 0.0f;
    for (int i = first + thread_index(); i < last; i += kGateThreads) bias += at(logits, s, i);
    bias = warp_sum(sum_over_warps(bias, shared));
    if (thread_index() == 0) sums[4 * p.head_dim + side] = bias;
    for (int context = 0; context < 2; ++context) {
      const Tensor4& x = side == kQuerySide ? (context ? p.context_query : p.query) : (context ? p.context_key : p.key);
      for (int first_dim = 0; first_dim < p.head_dim; first_dim += kWarp) {
        const int d = first_dim + lane;
        float sums_of_rows[kRowsAtOnce] = {};
        for (int row = first + warp; row < last && d < p.head_dim; row += kRowsAtOnce * kGateWarps) {
#pragma unroll
          for (int n = 0; n < kRowsAtOnce; ++n) {
            const int i = row + n * kGateWarps;
            if (i >= last || !reads_row(p, s, i, static_cast<Side>(side))) continue;
            sums_of_rows[n] += at(logits, s, i) * read(p.element, x.data, offset_of(x, s, i) + d * x.dim);
          }
        }
        const float sum = sum_over_warps(sum_of(sums_of_rows), shared);
        if (warp == 0 && d < p.head_dim) sums[(2 * side + context) * p.head_dim + d] = sum;
      }
    }
  }
}

// Adds the partial sums: one block for 32 dims of one vector (or one bias) of one head, or of all heads if they share
// it.
QACG_KERNEL(kGateThreads, 2) gate_sums(QACG_PARAMETER Problem p, QACG_PARAMETER Gradients g) {
  const int item = static_cast<int>(block_index() % kGateItems);
  const int64_t chunks = (p.head_dim + kWarp - 1) / kWarp, chunk = block_index() / kGateItems % chunks;
  const int64_t head = block_index() / kGateItems / chunks;
  const bool vector = item < 4;
  const PerHead& to = vector ? g.gate_vectors[item] : g.gate_biases[item - 4];
  const bool shared_by_heads = to.head == 0;
  const int64_t dims = vector ? p.head_dim : 1, d = chunk * kWarp + thread_index() % kWarp;
  if (!to.data || chunk * kWarp >= dims || head >= (shared_by_heads ? 1 : p.heads)) return;
  const int64_t first_head = shared_by_heads ? 0 : head, heads = shared_by_heads ? p.heads : 1;
  const int64_t width = gate_sums_width(p), column = (vector ? item * p.head_dim : 4 * p.head_dim + item - 4) + d;
  const int64_t rows = g.gate_parts * p.sequences * heads;
  float sums_of_rows[kRowsAtOnce] = {};
  for (int64_t row = thread_index() / kWarp; row < rows && d < dims; row += kRowsAtOnce * kGateWarps) {
#pragma unroll
    for (int k = 0; k < kRowsAtOnce; ++k) {
      const int64_t n = row + k * kGateWarps;
      if (n < rows) sums_of_rows[k] += g.gate_sums[((n / heads) * p.heads + first_head + n % heads) * width + column];
    }
  }
  const float sum = sum_over_warps(sum_of(sums_of_rows), reinterpret_cast<float*>(shared_memory()));
  if (thread_index() / kWarp == 0 && d < dims) write(p.element, to.data, head * to.head + d * to.dim, sum);
}

}  // namespace qacg::cuda

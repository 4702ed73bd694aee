// The gate's kernels: the column gate's key side before the forward, and the gradients of the gate vectors and biases
// after the backward, summed in a fixed order.
#pragma once

#include "gates.h"

namespace qacg::cuda {

constexpr int kGateThreads = 256, kGateWarps = kGateThreads / kWarp;
constexpr int kPartRows = kGateThreads / 2;  // queries and keys in a partial sum; a thread reads the logit of one row
// Rows that a thread reads before it adds them. The reads are in a block of code without branches: between branches,
// the compiler places each read next to its use, and the warp waits for one row after the other.
constexpr int kRowsAtOnce = 16;
constexpr int kGateItems = 8;  // four vectors and four biases
constexpr int kSumColumns = 8, kSumRows = kGateThreads / kSumColumns;  // columns and rows that gate_sums reads at once
constexpr int64_t kGateShared = kGateThreads * sizeof(float);

// One warp for each key: lk of the column gate.
QACG_KERNEL(kGateThreads, 2) key_gates(QACG_PARAMETER Problem p) {
  const Unit unit = unit_of(p, p.key_length, kGateWarps);
  const int j = unit.first + thread_index() / kWarp;
  if (j >= unit.sequence.all_keys) return;
  const float gate = gate_of_key(p, unit.sequence, j);
  if (thread_index() % kWarp == 0) at(p.key_gate, unit.sequence, j) = gate;
}

// Partial sums of one sequence and head, and the blocks of the two kernels that compute and add them.
inline int64_t part_count(const Problem& p) {
  const int64_t rows = p.query_length > p.key_length ? p.query_length : p.key_length;
  return (rows + kPartRows - 1) / kPartRows;
}

inline int64_t partial_sums_blocks(const Problem& p) { return part_count(p) * p.sequences * p.heads; }

inline int64_t gate_sums_blocks(const Problem& p) {
  const int64_t chunks = (p.head_dim + kSumColumns - 1) / kSumColumns;
  // Shared parameters have a gradient of 0 if there are no heads.
  return kGateItems * chunks * (p.heads > 0 ? p.heads : 1);
}

QACG_SHARED int64_t gate_sums_width(const Problem& p) { return 4 * static_cast<int64_t>(p.head_dim) + 2; }

// Returns the sum of t X at one dim over `rows` rows, of which there are at most kRowsAtOnce.
template <typename Scalar>
QACG_DEVICE float sum_at_once(const float* t, const Scalar* x, int64_t row, int rows) {
  Scalar values[kRowsAtOnce];
#pragma unroll
  for (int n = 0; n < kRowsAtOnce; ++n) {
    values[n] = n < rows ? *x : Scalar{};
    x += row;
  }
  float sum = 0.0f;
#pragma unroll
  for (int n = 0; n < kRowsAtOnce; ++n) sum += t[n] * widen(values[n]);
  return sum;
}

// Returns the sum of t X at one dim over `rows` rows. `first` is the offset of the first row's element in x.
template <typename Scalar>
QACG_DEVICE float sum_of_rows(const float* t, const Tensor4& x, int64_t first, int rows) {
  const Scalar* data = static_cast<const Scalar*>(x.data) + first;
  float sum = 0.0f;
  for (; rows >= kRowsAtOnce; rows -= kRowsAtOnce) {  // a constant number of rows needs no comparisons
    sum += sum_at_once(t, data, x.row, kRowsAtOnce);
    t += kRowsAtOnce;
    data += kRowsAtOnce * x.row;
  }
  return rows > 0 ? sum + sum_at_once(t, data, x.row, rows) : sum;
}

QACG_DEVICE float sum_of_rows(Element element, const float* t, const Tensor4& x, int64_t first, int rows) {
  if (element == Element::kFloat16) return sum_of_rows<Float16>(t, x, first, rows);
  return sum_of_rows<Bfloat16>(t, x, first, rows);
}

// Eq. 14, dv = sum of t X: a block stores the partial sums over kPartRows rows of one sequence and head. The block
// reads t, the gradients of the logits, into shared memory. Then each warp sums 32 dims of a vector at a time.
// With four blocks to a multiprocessor it spills on sm_80.
QACG_KERNEL(kGateThreads, 3) gate_partial_sums(QACG_PARAMETER Problem p, QACG_PARAMETER Gradients g) {
  const int block = static_cast<int>(block_index()), heads = static_cast<int>(p.heads);
  const int pairs = static_cast<int>(p.sequences) * heads, pair = block % pairs, first = block / pairs * kPartRows;
  const Sequence s = sequence_of(p, pair / heads, pair % heads);
  float* logits = reinterpret_cast<float*>(shared_memory());
  float* sums = g.gate_sums + block * gate_sums_width(p);
  const int thread = thread_index(), warp = thread / kWarp, lane = thread % kWarp;
  const int keys = p.column_gate ? s.all_keys : s.queries;
  const int own_side = thread / kPartRows, own_row = first + thread % kPartRows;
  const bool exists = own_row < (own_side == kQuerySide ? s.queries : keys);
  logits[thread] = exists ? at(own_side == kQuerySide ? g.query_logit : g.key_logit, s, own_row) : 0.0f;
  synchronise_block();
  if (warp <= kKeySide) {
    float bias = 0.0f;
    for (int n = lane; n < kPartRows; n += kWarp) bias += logits[warp * kPartRows + n];
    bias = warp_sum(bias);
    if (lane == 0) sums[4 * p.head_dim + warp] = bias;
  }
  const int chunks = (p.head_dim + kWarp - 1) / kWarp;
  for (int n = warp; n < 4 * chunks; n += kGateWarps) {
    const int vector = n / chunks, side = vector / 2, d = n % chunks * kWarp + lane;
    if (d >= p.head_dim) continue;
    const Tensor4& x =
        side == kQuerySide ? (vector % 2 ? p.context_query : p.query) : (vector % 2 ? p.context_key : p.key);
    const int readable = side == kQuerySide ? s.queries : p.column_gate ? s.keys : keys;
    const int rows = static_cast<int>(clamped(readable - first, 0, kPartRows));
    const int64_t offset = offset_of(x, s, first) + d;
    sums[vector * p.head_dim + d] = sum_of_rows(p.element, logits + side * kPartRows, x, offset, rows);
  }
}

// Adds the partial sums: one block for kSumColumns dims of one vector (or one bias) of one head, or of all heads if
// they share it.
QACG_KERNEL(kGateThreads, 2) gate_sums(QACG_PARAMETER Problem p, QACG_PARAMETER Gradients g) {
  const int block = static_cast<int>(block_index()), item = block % kGateItems;
  const int chunks = (p.head_dim + kSumColumns - 1) / kSumColumns,
            first_dim = block / kGateItems % chunks * kSumColumns;
  const int head = block / kGateItems / chunks;
  const bool vector = item < 4;
  const PerHead& to = vector ? g.gate_vectors[item] : g.gate_biases[item - 4];
  const bool shared_by_heads = to.head == 0;
  const int dims = vector ? p.head_dim : 1, d = first_dim + thread_index() % kSumColumns;
  if (!to.data || first_dim >= dims || head >= (shared_by_heads ? 1 : p.heads)) return;
  const int64_t width = gate_sums_width(p), column = (vector ? item * p.head_dim : 4 * p.head_dim + (item - 4) / 2) + d;
  // The sums of a head that does not share its parameters are p.heads rows apart.
  const int64_t apart = (shared_by_heads ? 1 : p.heads) * width;
  const int rows = static_cast<int>(g.gate_parts * p.sequences * (shared_by_heads ? p.heads : 1));
  const float* data = g.gate_sums + head * width + column;
  float sum = 0.0f;
  for (int row = thread_index() / kSumColumns; row < rows && d < dims; row += kRowsAtOnce * kSumRows) {
    float x[kRowsAtOnce];
#pragma unroll
    for (int n = 0; n < kRowsAtOnce; ++n) {
      const int i = row + n * kSumRows;
      x[n] = i < rows ? data[i * apart] : 0.0f;
    }
#pragma unroll
    for (int n = 0; n < kRowsAtOnce; ++n) sum += x[n];
  }
  float* sums = reinterpret_cast<float*>(shared_memory());
  sums[thread_index()] = sum;
  synchronise_block();
  if (thread_index() >= kSumColumns || d >= dims) return;
  float total = 0.0f;
  for (int n = 0; n < kSumRows; ++n) total += sums[n * kSumColumns + thread_index()];
  const int64_t offset = head * to.head + d * to.dim;
  if (p.float32_gate) return narrow(total, static_cast<float*>(to.data)[offset]);
  write(p.element, to.data, offset, total);
}

}  // namespace qacg::cuda

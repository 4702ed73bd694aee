// One call as pointers and strides: plain data that attention.cpp and the kernels of all instruction sets share. This
// header has no functions, because the linker could use a copy that was compiled for another instruction set.
#pragma once

#include <stdint.h>

namespace qacg {

enum class Element { kFloat32, kBfloat16, kFloat16 };
enum class Mask { kNone, kBoolean, kAdditive };

// (B, H, rows, D) with element strides and unit stride along D; packed tensors have batch stride 0.
struct Tensor4 {
  void* data;
  int64_t batch, head, row;
};

// (B, H, rows) of float32.
struct Rows {
  float* data;
  int64_t batch, head, row;
};

struct Problem {
  Element element;
  int64_t sequences, heads, head_dim;
  int64_t query_length, key_length;  // of every sequence, unless packed
  const int32_t* cu_seqlens;  // packed: sequence b is rows cu_seqlens[b] to cu_seqlens[b + 1]
  const int32_t* key_lengths;  // or null

  Tensor4 query, key, value, context_query, context_key;
  Rows lambda;  // null if the call has gate vectors
  const float* gate_vectors;  // (4, H, D): query, context query, key, context key
  const float* gate_biases;  // (2, H): query, key, each the sum of two biases
  bool column_gate;
  float beta, gamma;

  Mask mask_kind;
  const void* mask;
  int64_t mask_strides[4];  // 0 in dimensions that broadcast

  bool is_causal;
  float scale, quasi_scale;
  Rows quasi_bias;  // or null; strides are 0 in dimensions that broadcast
  bool has_dropout;
  uint64_t seed;
  uint32_t drop_threshold;  // of 65,536
  float keep_scale;

  // The maximum of every row of scores, and the sum of e^(score - maximum). The maximum is stored times log2 e unless
  // the mask is additive. A single logarithm of the sum would round P in proportion to the size of the scores.
  Rows row_max, row_sum;
  Rows query_gate, key_gate;
  Tensor4 out, softmax_out;  // softmax_out may be null
};

struct Gradients {
  Tensor4 out;  // incoming
  Rows query_gate, key_gate;  // incoming, or null
  Tensor4 query, key, value, context_query, context_key;
  Rows lambda;  // outgoing: d lambda, or null
  float* gate_vectors;  // outgoing, (B * H, 4, D) partial sums, or null
  float* gate_biases;  // outgoing, (B * H, 2) partial sums
  // Whether the gradients of the five operands are written past the caches, which requires rows of whole cache lines.
  bool streams;
  // Values per row that one pass hands to the next: delta, and the gradients of the two gates' logits.
  Rows delta, query_logit, key_logit;
};

// Blocks [first, last) of one sequence and head: of rows, or in backward_keys of keys.
struct Unit {
  int64_t sequence, head, first, last;
};

// `count` units for one thread, and the unit that it runs next, whose operands are prefetched; or null.
struct Units {
  const Unit* data;
  int64_t count;
  const Unit* next;
};

// One thread's memory: forward_scratch or backward_scratch bytes for these lengths, aligned to 64.
struct Scratch {
  void* data;
  int64_t longest_query, longest_key;
};

// The kernels of one instruction set for one element type.
struct Kernels {
  const char* name;
  int64_t row_block;  // queries in a block
  int64_t key_block;  // keys in a block of backward_keys
  int64_t (*forward_scratch)(const Problem&, int64_t longest_query, int64_t longest_key);
  int64_t (*backward_scratch)(const Problem&, int64_t longest_query, int64_t longest_key);
  void (*forward)(const Problem&, Units, Scratch);
  // The whole backward of each (sequence, head), whatever the units' blocks.
  void (*backward)(const Problem&, const Gradients&, Units, Scratch);
  // The same results, bitwise, in two passes whose units may be parts of a head: first row blocks (gradients of queries
  // and gates), then key blocks.
  void (*backward_rows)(const Problem&, const Gradients&, Units, Scratch);
  void (*backward_keys)(const Problem&, const Gradients&, Units, Scratch);
  // Runs after the passes above: gradients of the gate vectors and biases from one (sequence, head).
  void (*gate_sums)(const Problem&, const Gradients&, int64_t sequence, int64_t head);
};

}  // namespace qacg

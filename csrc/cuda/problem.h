// One call as pointers and strides: plain data that attention.cpp passes to the kernels.
#pragma once

#include <stdint.h>

namespace qacg::cuda {

enum class Element : int32_t { kFloat16, kBfloat16 };
enum class Mask : int32_t { kNone, kBoolean, kAdditive };

// (B, H, rows, D) of the call's element type, with element strides; packed tensors have batch stride 0. Rows have unit
// stride and start at multiples of 16 bytes.
struct Tensor4 {
  void* data;
  int64_t batch, head, row;
};

// (B, H, rows); of float32, unless a comment states another type.
struct Rows {
  void* data;
  int64_t batch, head, row;
};

// A gate vector (H, D), with a head stride of 0 if the heads share it. A bias has no D.
struct PerHead {
  void* data;
  int64_t head, dim;
};

enum Side { kQuerySide = 0, kKeySide = 1 };

// A contiguous vector of int32 or int64; or null.
struct Integers {
  const void* data;
  bool wide;
};

struct Problem {
  Element element;
  int32_t head_dim;
  int64_t sequences, heads;
  int64_t query_length, key_length;  // of every sequence; packed: max_seqlen, but at most T
  int64_t packed_rows;               // T
  Integers cu_seqlens;               // packed: sequence b is rows cu_seqlens[b] to cu_seqlens[b + 1]
  Integers key_lengths;

  Tensor4 query, key, value, context_query, context_key;
  Rows lambda;              // of the element type; null if the call has gate vectors
  PerHead gate_vectors[4];  // query, context query, key, context key; or null
  PerHead gate_biases[4];   // query, context query, key, context key; each may be null
  bool float32_gate;        // whether vectors, biases and their gradients are float32, else of the element type
  bool column_gate;
  float beta, gamma;

  Mask mask_kind;
  const void* mask;
  int64_t mask_strides[4];  // 0 in dimensions that broadcast
  bool is_key_mask;         // a mask that is the same for all queries, such as padding
  Rows quasi_bias;          // a summand of the context scores, or null; strides are 0 in dimensions that broadcast

  bool is_causal;
  float scale, quasi_scale;
  const int64_t* seed;      // in the device's memory; null: no dropout
  uint32_t drop_threshold;  // of 65,536
  float keep_scale;

  // Of every row of scores: the maximum, stored times log2 e, and the sum of e^(score - maximum).
  Rows row_max, row_sum;
  Rows query_gate, key_gate;
  Tensor4 out, softmax_out;  // softmax_out may be null
};

// Terms of a query row that the backward passes exchange: P = 2^(score - shift) normalise.
struct alignas(16) RowTerms {
  float shift, normalise, lambda, delta;
};

struct Gradients {
  Tensor4 out;                // incoming
  Rows query_gate, key_gate;  // incoming, or null
  Tensor4 query, key, value, context_query, context_key;
  Rows lambda;  // outgoing, of the element type
  // Values per row that one pass hands to the next: RowTerms as float32, and the gradients of the two gates' logits.
  Tensor4 terms;
  Rows query_logit, key_logit;
  // Partial sums, (gate_parts, sequences, heads, 4 vectors of D and 2 biases), and the outgoing gradients.
  float* gate_sums;
  int64_t gate_parts;
  PerHead gate_vectors[4], gate_biases[4];
};

}  // namespace qacg::cuda

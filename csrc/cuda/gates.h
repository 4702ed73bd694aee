// The gate: lambda of a row from its tensor or from the gate vectors, equations 4 to 6, and the gradients of both.
#pragma once

#include "sequence.h"

namespace qacg::cuda {

QACG_DEVICE float warp_sum(float x) {
  for (int lanes = kWarp / 2; lanes; lanes /= 2) x += shuffle_xor(x, lanes);
  return x;
}

// Whether lambda is computed from gate vectors. The pointer of the lambda tensor does not show this, because it is null
// too if there are no queries.
QACG_DEVICE bool has_gate_vectors(const Problem& p) { return p.gate_vectors[0].data != nullptr; }

QACG_DEVICE float gate_parameter(const Problem& p, const Sequence& s, const PerHead& t, int d) {
  const int64_t offset = s.head * t.head + d * t.dim;
  return p.float32_gate ? static_cast<const float*>(t.data)[offset] : read(p.element, t.data, offset);
}

QACG_DEVICE float gate_vector(const Problem& p, const Sequence& s, int vector, int d) {
  return gate_parameter(p, s, p.gate_vectors[vector], d);
}

QACG_DEVICE float gate_bias(const Problem& p, const Sequence& s, Side side) {
  const PerHead &own = p.gate_biases[2 * side], &context = p.gate_biases[2 * side + 1];
  return (own.data ? gate_parameter(p, s, own, 0) : 0.0f) + (context.data ? gate_parameter(p, s, context, 0) : 0.0f);
}

// Eq. 4 for key j of a column gate, by a whole warp. Keys at and beyond the length count as zeros and are not read.
QACG_DEVICE float gate_of_key(const Problem& p, const Sequence& s, int j) {
  float logit = 0.0f;
  if (j < s.keys) {
    const int64_t key = offset_of(p.key, s, j), context = offset_of(p.context_key, s, j);
    for (int d = thread_index() % kWarp; d < p.head_dim; d += kWarp) {
      logit += read(p.element, p.key.data, key + d) * gate_vector(p, s, 2, d);
      logit += read(p.element, p.context_key.data, context + d) * gate_vector(p, s, 3, d);
    }
  }
  return sigmoid<Accurate>((warp_sum(logit) + gate_bias(p, s, kKeySide)) * kLog2e);
}

// lambda_i from gates that are already computed; for a column gate its part without gamma lk_j.
QACG_DEVICE float lambda_of_row(const Problem& p, const Sequence& s, int i) {
  if (!has_gate_vectors(p)) return read(p.element, p.lambda.data, offset_of(p.lambda, s, i));
  const float lq = p.beta * at(p.query_gate, s, i);
  return 1.0f - (p.column_gate ? lq : lq + p.gamma * at(p.key_gate, s, i));
}

// gamma lk of key j, which a column gate subtracts from lambda.
QACG_DEVICE float key_gate_part(const Problem& p, const Sequence& s, int j) {
  return p.column_gate && j < s.keys ? p.gamma * at(p.key_gate, s, j) : 0.0f;
}

// Eq. 13 and 14 for row i of the queries, from d lambda: stores the gradient of the lambda tensor, or those of the
// row's gate logits. Returns the gradient of the query gate's logit, 0 with a lambda tensor.
QACG_DEVICE float finish_row_gate(const Problem& p, const Gradients& g, const Sequence& s, int i, float d_lambda) {
  if (!has_gate_vectors(p)) {
    write(p.element, g.lambda.data, offset_of(g.lambda, s, i), d_lambda);
    return 0.0f;
  }
  const auto through = [&](float d_gate, const Rows& incoming, const Rows& gate) {
    if (incoming.data) d_gate += at(incoming, s, i);
    return gate_logit_gradient(d_gate, at(gate, s, i));
  };
  const float query_logit = through(-p.beta * d_lambda, g.query_gate, p.query_gate);
  at(g.query_logit, s, i) = query_logit;
  if (!p.column_gate) at(g.key_logit, s, i) = through(-p.gamma * d_lambda, g.key_gate, p.key_gate);
  return query_logit;
}

// Eq. 13 and 14 for key j. Returns the gradient of the key gate's logit, for the key's gradient: 0 with a lambda tensor
// and for keys that the gate does not read. A column gate computes the gradient from `d_lambda`, the sum over queries,
// and stores it; a row gate reads what finish_row_gate() stored.
QACG_DEVICE float finish_key_gate(const Problem& p, const Gradients& g, const Sequence& s, int j, float d_lambda) {
  if (!has_gate_vectors(p)) return 0.0f;
  if (!p.column_gate) return at(g.key_logit, s, j);
  float d_gate = -p.gamma * d_lambda;
  if (g.key_gate.data) d_gate += at(g.key_gate, s, j);
  const float logit = gate_logit_gradient(d_gate, at(p.key_gate, s, j));
  at(g.key_logit, s, j) = logit;
  return j < s.keys ? logit : 0.0f;
}

}  // namespace qacg::cuda

// The launches that attention.cpp calls. Each runs on a stream of the current device and returns null or the error as
// text. Includes neither torch nor CUDA headers.
#pragma once

#include "../common/half_types.h"
#include "problem.h"

namespace qacg::cuda {

// Computes the column gate's lk into p.key_gate. Must run before a forward with a column gate.
const char* run_key_gates(const Problem& p, void* stream);

// For Scalar = Float16 and Bfloat16, the type of p.element.
template <typename Scalar>
const char* run_forward(const Problem& p, void* stream);
template <typename Scalar>
const char* run_backward(const Problem& p, const Gradients& g, void* stream);

// run_gate_sums computes the gradients of the gate vectors and biases. It must run after the backward, with
// g.gate_parts from gate_sums_parts and space for gate_sums_floats floats in g.gate_sums.
int64_t gate_sums_parts(const Problem& p);
int64_t gate_sums_floats(const Problem& p);
const char* run_gate_sums(const Problem& p, const Gradients& g, void* stream);

}  // namespace qacg::cuda

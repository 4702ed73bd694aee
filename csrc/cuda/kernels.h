// What the host half (attention.cpp) calls: each function launches kernels on a stream of the current device and returns
// null, or what went wrong in words. No torch and no CUDA header.
#pragma once

#include "problem.h"

namespace qacg::cuda {

// The column gate's lk, into p.key_gate; before a forward with a column gate.
const char* run_key_gates(const Problem& p, void* stream);

// The plain path takes every problem.
const char* run_plain_forward(const Problem& p, void* stream);
const char* run_plain_backward(const Problem& p, const Gradients& g, void* stream);

// Gradients of the gate vectors, after a backward; g.gate_sums has room for gate_sums_floats.
int64_t gate_sums_parts(const Problem& p);
int64_t gate_sums_floats(const Problem& p);
const char* run_gate_sums(const Problem& p, const Gradients& g, void* stream);

}  // namespace qacg::cuda

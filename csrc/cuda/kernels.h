// What the host half (attention.cpp) calls: each function launches kernels on a stream of the current device and
// returns null, or what went wrong in words. No torch and no CUDA header.
#pragma once

#include "problem.h"

namespace qacg::cuda {

// The column gate's lk, into p.key_gate; before a forward with a column gate.
const char* run_key_gates(const Problem& p, void* stream);

// The plain path takes every problem.
const char* run_plain_forward(const Problem& p, void* stream);
const char* run_plain_backward(const Problem& p, const Gradients& g, void* stream);

// The tensor-core path, for elements of 16 bits, head sizes that are multiples of 8 up to 128, rows that start at
// multiples of 16 bytes with their dims side by side, and no quasi_out. It leaves and takes the same things between
// forward and backward as the plain path. `taken` says whether it fitted the device's shared memory; if not, nothing
// ran.
const char* run_mma_forward_float16(const Problem& p, void* stream, bool* taken);
const char* run_mma_forward_bfloat16(const Problem& p, void* stream, bool* taken);
const char* run_mma_backward_float16(const Problem& p, const Gradients& g, void* stream, bool* taken);
const char* run_mma_backward_bfloat16(const Problem& p, const Gradients& g, void* stream, bool* taken);

// The forward on Hopper's tensor cores, for the same calls; `taken` says whether the device has them and the library
// code for it.
const char* run_hopper_forward_float16(const Problem& p, void* stream, bool* taken);
const char* run_hopper_forward_bfloat16(const Problem& p, void* stream, bool* taken);

// Gradients of the gate vectors, after a backward; g.gate_sums has room for gate_sums_floats.
int64_t gate_sums_parts(const Problem& p);
int64_t gate_sums_floats(const Problem& p);
const char* run_gate_sums(const Problem& p, const Gradients& g, void* stream);

}  // namespace qacg::cuda

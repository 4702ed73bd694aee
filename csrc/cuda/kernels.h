// The launches that attention.cpp calls. Each runs on a stream of the current device and returns null or the error as
// text. Includes neither torch nor CUDA headers.
#pragma once

#include "problem.h"

namespace qacg::cuda {

// Computes the column gate's lk into p.key_gate. Must run before a forward with a column gate.
const char* run_key_gates(const Problem& p, void* stream);

// The plain path supports every problem.
const char* run_plain_forward(const Problem& p, void* stream);
const char* run_plain_backward(const Problem& p, const Gradients& g, void* stream);

// The tensor-core path takes elements of 16 bits, head sizes that are multiples of 8 up to 128, rows with unit stride
// that start at multiples of 16 bytes. Both paths exchange the same tensors between forward and backward. If the
// kernels exceed the device's shared memory, nothing runs and `launched` is false.
const char* run_mma_forward_float16(const Problem& p, void* stream, bool* launched);
const char* run_mma_forward_bfloat16(const Problem& p, void* stream, bool* launched);
const char* run_mma_backward_float16(const Problem& p, const Gradients& g, void* stream, bool* launched);
const char* run_mma_backward_bfloat16(const Problem& p, const Gradients& g, void* stream, bool* launched);

// run_gate_sums computes the gradients of the gate vectors and biases. It must run after the backward, with
// g.gate_parts from gate_sums_parts and space for gate_sums_floats floats in g.gate_sums.
int64_t gate_sums_parts(const Problem& p);
int64_t gate_sums_floats(const Problem& p);
const char* run_gate_sums(const Problem& p, const Gradients& g, void* stream);

}  // namespace qacg::cuda

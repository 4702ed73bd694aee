// The stream of csrc/cuda/attention.cpp on a CPU: there are no streams, and the operators are registered for the CPU.
#pragma once

#define QACG_DISPATCH_KEY CPU

namespace qacg::cuda {

inline bool is_on_own_device(const torch::stable::Tensor& t) { return t.is_cpu(); }

struct CurrentStream {
  explicit CurrentStream(const torch::stable::Tensor&) {}
  void* handle() const { return nullptr; }
};

}  // namespace qacg::cuda

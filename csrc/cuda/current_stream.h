// The current stream of a tensor's device, which is the current device as long as this object lives.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/tensor.h>

#if defined(QACG_EMULATED)
#include "current_stream_emulator.h"
#else

#define QACG_DISPATCH_KEY CUDA

// Declared here because torch's header declares it only to code that torch's own CUDA build compiles.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);

namespace qacg::cuda {

// Whether a tensor is where these operators work.
inline bool is_on_own_device(const torch::stable::Tensor& t) { return t.is_cuda(); }

class CurrentStream {
 public:
  explicit CurrentStream(const torch::stable::Tensor& t) : guard_(t.get_device_index()) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(t.get_device_index(), &stream_));
  }
  void* handle() const { return stream_; }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  void* stream_ = nullptr;
};

}  // namespace qacg::cuda

#endif

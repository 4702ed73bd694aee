// The CUDA driver, loaded when the first kernel is launched, so that no CUDA toolkit is required to build or import.
#pragma once

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <cstdint>

#include "../common/errors.h"

namespace qacg::launch {

// CUlaunchConfig of cuda.h.
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void *stream, *attributes;
  unsigned attribute_count;
};

// Returns torch's function for the current stream of a device; null in a torch without CUDA. Python loads torch's
// libraries with local symbols, so they have to be looked up in the library.
inline auto current_stream_function() {
  using Function = AOTITorchError (*)(int32_t device, void** stream);
  void* torch = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  return torch ? reinterpret_cast<Function>(dlsym(torch, "aoti_torch_get_current_cuda_stream")) : nullptr;
}

struct Driver {
  int (*launch)(const LaunchConfig*, void* function, void** parameters, void** extra);
  int (*current_context)(void** context);
  int (*set_context)(void* context);
  int (*device)(int* device, int ordinal);
  int (*retain_context)(void** context, int device);
  int (*error_text)(int error, const char** text);
  AOTITorchError (*stream)(int32_t device, void** stream) = current_stream_function();

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    require(library, "backend 'triton': expected the CUDA driver libcuda.so.1, got none");
    load(launch, library, "cuLaunchKernelEx");
    load(current_context, library, "cuCtxGetCurrent");
    load(set_context, library, "cuCtxSetCurrent");
    load(device, library, "cuDeviceGet");
    load(retain_context, library, "cuDevicePrimaryCtxRetain");
    load(error_text, library, "cuGetErrorString");
  }

  static const Driver& get() {
    static const Driver driver;
    return driver;
  }

  void check(int error) const {
    if (!error) return;
    const char* text = nullptr;
    error_text(error, &text);
    refuse("backend 'triton': CUDA error: ", text ? text : "unknown");
  }

 private:
  template <typename Function>
  static void load(Function& function, void* library, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    require(function, "backend 'triton': expected a driver with ", name, ", got an older one. Update the driver");
  }
};

// The current stream of a device, which becomes the current device.
class CurrentStream {
 public:
  CurrentStream(int32_t device_type, int32_t device) {
    if (device_type != aoti_torch_device_type_cpu()) {  // on a CPU, tests replace the driver
      int32_t current = -1;
      TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_device_index(&current));
      if (current != device) TORCH_ERROR_CODE_CHECK(aoti_torch_create_device_guard(device, &guard_));
      TORCH_ERROR_CODE_CHECK(driver_.stream(device, &stream_));
    }
    // A thread that has not used CUDA, such as one of autograd's, has no context.
    void* context = nullptr;
    driver_.check(driver_.current_context(&context));
    if (context) return;
    int ordinal = 0;
    driver_.check(driver_.device(&ordinal, std::max(device, 0)));
    driver_.check(driver_.retain_context(&context, ordinal));
    driver_.check(driver_.set_context(context));
  }
  CurrentStream(const CurrentStream&) = delete;
  ~CurrentStream() {
    if (guard_) aoti_torch_delete_device_guard(guard_);
  }

  void launch(void* function, unsigned programs, unsigned threads, unsigned shared_bytes, void** parameters) const {
    const LaunchConfig config{programs, 1, 1, threads, 1, 1, shared_bytes, stream_, nullptr, 0};
    driver_.check(driver_.launch(&config, function, parameters, nullptr));
  }

 private:
  const Driver& driver_ = Driver::get();
  DeviceGuardHandle guard_ = nullptr;
  void* stream_ = nullptr;
};

}  // namespace qacg::launch

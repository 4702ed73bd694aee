// The GPUs that this library has code for.
#pragma once

#include <string_view>

// setup.py gives it beside the flags that it stands for: 8.0:9.0a:10.0+PTX, say.
#if !defined(QACG_GPUS)
#define QACG_GPUS
#endif
#define QACG_TEXT(words) QACG_TEXT_AS_IT_IS(words)
#define QACG_TEXT_AS_IT_IS(words) #words

namespace qacg::cuda {

// As TORCH_CUDA_ARCH_LIST names them, with colons between.
constexpr const char* kGpus = QACG_TEXT(QACG_GPUS);

constexpr bool has_code_for(std::string_view gpu) {
  std::string_view left = kGpus;
  while (true) {
    const auto end = left.find(':');
    if (left.substr(0, end) == gpu) return true;
    if (end == std::string_view::npos) return false;
    left.remove_prefix(end + 1);
  }
}

}  // namespace qacg::cuda

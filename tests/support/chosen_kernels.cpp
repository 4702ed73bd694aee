// Prints the choice of csrc/cpu/capability.cpp without the kernels: the variant and the reason for float32, bfloat16
// and float16.

#include <cstdio>
#include <initializer_list>

#include "../../csrc/cpu/capability.h"

namespace qacg {

#define KERNELS(constant, name)  \
  extern const Kernels constant; \
  const Kernels constant = {name}
KERNELS(kPlainFloat32, "plain");
KERNELS(kPlainBfloat16, "plain");
KERNELS(kPlainFloat16, "plain");
KERNELS(kAvx2Float32, "avx2");
KERNELS(kAvx2Bfloat16, "avx2");
KERNELS(kAvx2Float16, "avx2");
KERNELS(kAvx512Float32, "avx512");
KERNELS(kAvx512Bfloat16, "avx512");
KERNELS(kAvx512Float16, "avx512");
KERNELS(kAvx512Bf16Bfloat16, "avx512_bf16");
KERNELS(kAmxFloat32, "amx");
KERNELS(kAmxBfloat16, "amx");

double bfloat16_gain(), fma_burst(), vdpbf16ps_burst(), tile_burst();
double bfloat16_gain() { return 2.0; }
double fma_burst() { return 0.0; }
double vdpbf16ps_burst() { return 0.0; }
double tile_burst() { return 0.0; }

}  // namespace qacg

int main() {
  for (const auto element : {qacg::Element::kFloat32, qacg::Element::kBfloat16, qacg::Element::kFloat16}) {
    const qacg::Choice choice = qacg::choose(element);
    std::printf("%s %s\n", choice.kernels ? choice.kernels->name : "-", choice.why);
  }
}

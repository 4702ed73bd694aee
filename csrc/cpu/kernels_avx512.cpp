// x86-64 CPUs with AVX-512 (F, BW, DQ, VL): sixteen lanes.
#define QACG_ISA avx512
#include "kernels.h"

namespace qacg {
// A const object has internal linkage unless an extern declaration comes first.
extern const Kernels kAvx512Float32, kAvx512Bfloat16, kAvx512Float16;
const Kernels kAvx512Float32 = avx512::Table<avx512::Float32Engine<float>>::kernels("avx512");
const Kernels kAvx512Bfloat16 = avx512::Table<avx512::Float32Engine<avx512::HalfBits>>::kernels("avx512");
const Kernels kAvx512Float16 = avx512::Table<avx512::Float32Engine<avx512::Float16>>::kernels("avx512");
}  // namespace qacg

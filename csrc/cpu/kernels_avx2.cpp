// x86-64 CPUs with AVX2, FMA and F16C: eight lanes.
#define QACG_ISA avx2
#include "kernels.h"

namespace qacg {
// A const object has internal linkage unless an extern declaration comes first.
extern const Kernels kAvx2Float32, kAvx2Bfloat16, kAvx2Float16;
const Kernels kAvx2Float32 = avx2::Table<avx2::Float32Engine<float>>::kernels("avx2");
const Kernels kAvx2Bfloat16 = avx2::Table<avx2::Float32Engine<avx2::HalfBits>>::kernels("avx2");
const Kernels kAvx2Float16 = avx2::Table<avx2::Float32Engine<avx2::Float16>>::kernels("avx2");
}  // namespace qacg

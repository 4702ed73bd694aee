// Any CPU the compiler targets by default: four lanes.
#define QACG_ISA plain
#include "kernels.h"

namespace qacg {
// A const object has internal linkage unless an extern declaration comes first.
extern const Kernels kPlainFloat32, kPlainBfloat16, kPlainFloat16;
const Kernels kPlainFloat32 = plain::Table<plain::Float32Engine<float>>::kernels("plain");
const Kernels kPlainBfloat16 = plain::Table<plain::Float32Engine<plain::HalfBits>>::kernels("plain");
const Kernels kPlainFloat16 = plain::Table<plain::Float32Engine<plain::Float16>>::kernels("plain");
}  // namespace qacg

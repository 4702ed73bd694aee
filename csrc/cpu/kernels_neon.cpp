// aarch64 CPUs, all of which have NEON: four lanes.
#define QACG_ISA neon
#include "kernels.h"

namespace qacg {
// A const object has internal linkage unless an extern declaration comes first.
extern const Kernels kNeonFloat32, kNeonBfloat16, kNeonFloat16;
const Kernels kNeonFloat32 = neon::Table<neon::Float32Engine<float>>::kernels("neon");
const Kernels kNeonBfloat16 = neon::Table<neon::Float32Engine<neon::HalfBits>>::kernels("neon");
const Kernels kNeonFloat16 = neon::Table<neon::Float32Engine<neon::Float16>>::kernels("neon");
}  // namespace qacg

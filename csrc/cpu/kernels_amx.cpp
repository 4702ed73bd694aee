// x86-64 CPUs with AVX-512 and AMX tiles for bfloat16.
#define QACG_ISA amx
#include "engine_amx.h"
#include "kernels.h"

namespace qacg {
// A const object has internal linkage unless an extern declaration comes first.
extern const Kernels kAmxFloat32, kAmxBfloat16;
const Kernels kAmxFloat32 = amx::Table<amx::AmxEngine<float>>::kernels("amx");
const Kernels kAmxBfloat16 = amx::Table<amx::AmxEngine<amx::HalfBits>>::kernels("amx");
}  // namespace qacg

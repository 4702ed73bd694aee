// Additive mask values at or below these numbers hide their key, as in qacg_kernels/call/problem.py. Each is half the
// lowest number of its type.
#pragma once

namespace qacg {

constexpr float kHidingFloat32 = -0x1.fffffep126f, kHidingBfloat16 = -0x1.fep126f, kHidingFloat16 = -32752.0f;

}  // namespace qacg

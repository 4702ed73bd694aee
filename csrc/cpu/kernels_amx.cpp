// x86-64 CPUs with AVX-512 and AMX tiles for bfloat16.
#define QACG_ISA amx
#include "engine_amx.h"
#include "kernels.h"

namespace qacg {
// A const object has internal linkage unless an extern declaration comes first.
extern const Kernels kAmxFloat32, kAmxBfloat16;
const Kernels kAmxFloat32 = amx::Table<amx::AmxEngine<float>>::kernels("amx");
const Kernels kAmxBfloat16 = amx::Table<amx::AmxEngine<amx::HalfBits>>::kernels("amx");

// Runs products of tiles that stay in their registers for about 0.1 ms; returns their FLOP.
double tile_burst();
double tile_burst() {
  constexpr int kSteps = 1500;
  alignas(64) amx::HalfBits halves[amx::kTileSize];
  for (auto& half : halves) half = {0x3f00};  // 0.5: products of zeros take less power
  asm volatile("" ::: "memory");  // see product() in engine_amx.h
  _tile_loadconfig(&amx::kTiles);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  amx::load_left<2>(halves, 0);
  amx::load_right<2>(halves, 0);
  for (int step = 0; step < kSteps; ++step) amx::multiply_tiles<2, 2>();
  _tile_release();
  return 4.0 * kSteps * 2 * amx::kTileSize * amx::kTileSide;
}
}  // namespace qacg

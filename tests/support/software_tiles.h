// The AMX instructions of csrc/cpu/engine_amx.h in software, for tests (-include before kernels_amx.cpp): processors
// without AMX then run these kernels, and sanitizers see the memory that tiles read and write. Every tile has 16 rows
// of 64 bytes. AVX-512 is required.
#pragma once

#include <immintrin.h>

#include <cstring>

namespace software_tiles {

struct alignas(64) Row {
  unsigned char bytes[64];
};
inline thread_local Row tiles[8][16];

inline void load(int tile, const void* from, long stride) {
  for (int r = 0; r < 16; ++r) memcpy(&tiles[tile][r], static_cast<const char*>(from) + r * stride, sizeof(Row));
}

inline void store(int tile, void* to, long stride) {
  for (int r = 0; r < 16; ++r) memcpy(static_cast<char*>(to) + r * stride, &tiles[tile][r], sizeof(Row));
}

// Row m of `sums` += the sum over pairs p of bfloat16: left[m][2p] right[p][2n] + left[m][2p + 1] right[p][2n + 1].
inline void multiply(int sums, int left, int right) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  for (int m = 0; m < 16; ++m) {
    __m512 total = _mm512_load_ps(&tiles[sums][m]);
    for (int p = 0; p < 16; ++p) {
      int pair;
      memcpy(&pair, tiles[left][m].bytes + 4 * p, sizeof(pair));
      const __m512i a = _mm512_set1_epi32(pair), b = _mm512_load_si512(&tiles[right][p]);
      const auto even = [](__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); };
      const auto odd = [&](__m512i pairs) { return _mm512_castsi512_ps(_mm512_and_si512(pairs, upper)); };
      total = _mm512_fmadd_ps(even(a), even(b), total);
      total = _mm512_fmadd_ps(odd(a), odd(b), total);
    }
    _mm512_store_ps(&tiles[sums][m], total);
  }
}

}  // namespace software_tiles

// The compiler defines these names as macros or functions.
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_loadconfig
#undef _tile_release
#define _tile_loadd(tile, from, stride) software_tiles::load(tile, from, stride)
#define _tile_stored(tile, to, stride) software_tiles::store(tile, to, stride)
#define _tile_zero(tile) memset(software_tiles::tiles[tile], 0, sizeof(software_tiles::tiles[tile]))
#define _tile_dpbf16ps(sums, left, right) software_tiles::multiply(sums, left, right)
#define _tile_loadconfig(configuration) static_cast<void>(configuration)
#define _tile_release() static_cast<void>(0)

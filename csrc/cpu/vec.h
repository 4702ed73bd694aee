// One SIMD register of floats and the few operations that differ between instruction sets.
//
// Written on the compiler's vector extensions, so that the same source serves every instruction set. Everything
// lives in a namespace named after it: two translation units built with different flags must not share an inline
// function, or the linker could keep the copy that an older CPU cannot run. For the same reason the kernel headers
// include no header that defines inline functions beyond the intrinsics.
#pragma once

#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define QACG_INLINE inline __attribute__((always_inline))
#define QACG_INLINE_LAMBDA __attribute__((always_inline))

namespace QACG_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kRegisters = 32;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kRegisters = 16;
#else
constexpr int kLanes = 4;
constexpr int kRegisters = 16;
#endif

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t IntVec __attribute__((vector_size(4 * kLanes)));
typedef uint32_t UintVec __attribute__((vector_size(4 * kLanes)));
typedef float UnalignedVec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

QACG_INLINE Vec load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
QACG_INLINE void store(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }
#if defined(__AVX512F__)
QACG_INLINE Vec splat(float x) { return (Vec)_mm512_set1_ps(x); }
#elif defined(__AVX2__)
QACG_INLINE Vec splat(float x) { return (Vec)_mm256_set1_ps(x); }
#else
QACG_INLINE Vec splat(float x) { return Vec{x, x, x, x}; }
#endif
QACG_INLINE IntVec bits(Vec v) { return (IntVec)v; }

// Both return `v` where it is NaN: a NaN in the input must reach the output.
#if defined(__AVX512F__)
QACG_INLINE Vec at_least(Vec v, Vec low) { return (Vec)_mm512_max_ps((__m512)low, (__m512)v); }
QACG_INLINE Vec at_most(Vec v, Vec high) { return (Vec)_mm512_min_ps((__m512)high, (__m512)v); }
#elif defined(__AVX2__)
QACG_INLINE Vec at_least(Vec v, Vec low) { return (Vec)_mm256_max_ps((__m256)low, (__m256)v); }
QACG_INLINE Vec at_most(Vec v, Vec high) { return (Vec)_mm256_min_ps((__m256)high, (__m256)v); }
#else
QACG_INLINE Vec at_least(Vec v, Vec low) { return low > v ? low : v; }
QACG_INLINE Vec at_most(Vec v, Vec high) { return high < v ? high : v; }
#endif

// 1 / v to within an ulp, for v in [1, 2^126].
#if defined(__AVX512F__)
QACG_INLINE Vec reciprocal(Vec v) {
  Vec y = (Vec)_mm512_rcp14_ps((__m512)v);
  return y + y * (1.0f - v * y);
}
#else
QACG_INLINE Vec reciprocal(Vec v) { return 1.0f / v; }
#endif

QACG_INLINE float sum(Vec v) {
  float total = 0;
  for (int i = 0; i < kLanes; ++i) total += v[i];
  return total;
}

QACG_INLINE float largest(Vec v) {
  float top = v[0];
  for (int i = 1; i < kLanes; ++i) top = v[i] > top ? v[i] : top;
  return top;
}

// All-ones in the lanes below `count`.
QACG_INLINE IntVec lanes_below(int64_t count) {
  IntVec lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  const int32_t limit = count > kLanes ? kLanes : static_cast<int32_t>(count);
  return lane < limit;
}

QACG_INLINE Vec keep_where(IntVec mask, Vec v) { return (Vec)(mask & (IntVec)v); }

QACG_INLINE int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
QACG_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace QACG_ISA

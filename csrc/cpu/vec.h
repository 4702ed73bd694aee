// One SIMD register of floats and the few operations that differ between instruction sets.
//
// Written with the compiler's vector extensions, so that the same source works for every instruction set. Everything is
// in a namespace named after the instruction set. Otherwise translation units built with different flags would share
// inline functions, and the linker could keep the copy that an older CPU cannot run. For the same reason the kernel
// headers include no header that defines inline functions, except those of the intrinsics.
#pragma once

#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
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
#elif defined(__aarch64__)
constexpr int kLanes = 4;
constexpr int kRegisters = 32;
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
// Stores past the caches; `p` must be aligned to the register. Other threads see the value after end_streams().
#if defined(__AVX512F__)
QACG_INLINE void stream(float* p, Vec v) { _mm512_stream_ps(p, (__m512)v); }
#elif defined(__AVX2__)
QACG_INLINE void stream(float* p, Vec v) { _mm256_stream_ps(p, (__m256)v); }
#else
QACG_INLINE void stream(float* p, Vec v) { store(p, v); }
#endif
#if defined(__AVX2__)
QACG_INLINE void end_streams() { _mm_sfence(); }
#else
QACG_INLINE void end_streams() {}
#endif
#if defined(__AVX512F__)
QACG_INLINE Vec splat(float x) { return (Vec)_mm512_set1_ps(x); }
#elif defined(__AVX2__)
QACG_INLINE Vec splat(float x) { return (Vec)_mm256_set1_ps(x); }
#else
QACG_INLINE Vec splat(float x) { return Vec{x, x, x, x}; }
#endif
QACG_INLINE IntVec bits(Vec v) { return (IntVec)v; }

// x * factor - shift, by one multiply-add if the CPU has this instruction, so that forward and backward round the
// result alike. The compiler would not fuse the two operations across a branch.
#if defined(__AVX512F__)
QACG_INLINE Vec multiply_subtract(Vec x, Vec factor, Vec shift) {
  return (Vec)_mm512_fmsub_ps((__m512)x, (__m512)factor, (__m512)shift);
}
#elif defined(__AVX2__)
QACG_INLINE Vec multiply_subtract(Vec x, Vec factor, Vec shift) {
  return (Vec)_mm256_fmsub_ps((__m256)x, (__m256)factor, (__m256)shift);
}
#elif defined(__aarch64__)
QACG_INLINE Vec multiply_subtract(Vec x, Vec factor, Vec shift) {
  return (Vec)vfmaq_f32(-(float32x4_t)shift, (float32x4_t)x, (float32x4_t)factor);
}
#else
QACG_INLINE Vec multiply_subtract(Vec x, Vec factor, Vec shift) { return x * factor - shift; }
#endif

// Both return `v` if it is NaN, because a NaN in the input must reach the output.
#if defined(__AVX512F__)
QACG_INLINE Vec at_least(Vec v, Vec low) { return (Vec)_mm512_max_ps((__m512)low, (__m512)v); }
QACG_INLINE Vec at_most(Vec v, Vec high) { return (Vec)_mm512_min_ps((__m512)high, (__m512)v); }
#elif defined(__AVX2__)
QACG_INLINE Vec at_least(Vec v, Vec low) { return (Vec)_mm256_max_ps((__m256)low, (__m256)v); }
QACG_INLINE Vec at_most(Vec v, Vec high) { return (Vec)_mm256_min_ps((__m256)high, (__m256)v); }
#elif defined(__aarch64__)
QACG_INLINE Vec at_least(Vec v, Vec low) { return (Vec)vmaxq_f32((float32x4_t)low, (float32x4_t)v); }
QACG_INLINE Vec at_most(Vec v, Vec high) { return (Vec)vminq_f32((float32x4_t)high, (float32x4_t)v); }
#else
QACG_INLINE Vec at_least(Vec v, Vec low) { return low > v ? low : v; }
QACG_INLINE Vec at_most(Vec v, Vec high) { return high < v ? high : v; }
#endif

// 1 / v to within 2^-kEstimateBits, for v in [1, 2^126]; with AVX, that of infinity is 0.
#if defined(__AVX512F__)
constexpr int kEstimateBits = 14;
QACG_INLINE Vec reciprocal_estimate(Vec v) { return (Vec)_mm512_rcp14_ps((__m512)v); }
#elif defined(__AVX2__)
constexpr int kEstimateBits = 11;
QACG_INLINE Vec reciprocal_estimate(Vec v) { return (Vec)_mm256_rcp_ps((__m256)v); }
#elif defined(__aarch64__)
constexpr int kEstimateBits = 15;
QACG_INLINE Vec reciprocal_estimate(Vec v) {
  const float32x4_t y = vrecpeq_f32((float32x4_t)v);
  return (Vec)(y * vrecpsq_f32((float32x4_t)v, y));
}
#else
constexpr int kEstimateBits = 24;
QACG_INLINE Vec reciprocal_estimate(Vec v) { return 1.0f / v; }
#endif

// 1 / v to within an ulp, for v in [1, 2^126].
#if defined(__AVX512F__)
QACG_INLINE Vec reciprocal(Vec v) {
  const Vec y = reciprocal_estimate(v);
  return y + y * (1.0f - v * y);
}
#elif defined(__aarch64__)
// Two Newton steps: five operations that overlap with others, unlike a division.
QACG_INLINE Vec reciprocal(Vec v) {
  const float32x4_t y = (float32x4_t)reciprocal_estimate(v);
  return (Vec)(y * vrecpsq_f32((float32x4_t)v, y));
}
#else
QACG_INLINE Vec reciprocal(Vec v) { return 1.0f / v; }
#endif

// Joins the halves of a register repeatedly until four lanes are left, for sum() and largest().
typedef float Quad __attribute__((vector_size(16)));
#if defined(__AVX512F__)
QACG_INLINE Quad halved(Vec v, Quad (*join)(Quad, Quad)) {
  const __m512 w = (__m512)v;
  return join(join((Quad)_mm512_castps512_ps128(w), (Quad)_mm512_extractf32x4_ps(w, 1)),
              join((Quad)_mm512_extractf32x4_ps(w, 2), (Quad)_mm512_extractf32x4_ps(w, 3)));
}
#elif defined(__AVX2__)
QACG_INLINE Quad halved(Vec v, Quad (*join)(Quad, Quad)) {
  return join((Quad)_mm256_castps256_ps128((__m256)v), (Quad)_mm256_extractf128_ps((__m256)v, 1));
}
#else
QACG_INLINE Quad halved(Vec v, Quad (*)(Quad, Quad)) { return v; }
#endif
QACG_INLINE float sum(Vec v) {
  const Quad q = halved(v, [](Quad a, Quad b) QACG_INLINE_LAMBDA { return a + b; });
  return (q[0] + q[1]) + (q[2] + q[3]);
}
// The largest lane. It may ignore NaN lanes, because a NaN score makes the sum of its row NaN.
QACG_INLINE float largest(Vec v) {
  const Quad q = halved(v, [](Quad a, Quad b) QACG_INLINE_LAMBDA { return a > b ? a : b; });
  const float low = q[0] > q[1] ? q[0] : q[1], high = q[2] > q[3] ? q[2] : q[3];
  return low > high ? low : high;
}

// Listed as constants: if a loop filled the register, GCC 12 would run that loop at each use.
#if defined(__AVX512F__)
constexpr IntVec kLaneNumbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(__AVX2__)
constexpr IntVec kLaneNumbers = {0, 1, 2, 3, 4, 5, 6, 7};
#else
constexpr IntVec kLaneNumbers = {0, 1, 2, 3};
#endif
// All-ones in the lanes below `count`.
QACG_INLINE IntVec lanes_below(int64_t count) {
  const int32_t limit = count > kLanes ? kLanes : static_cast<int32_t>(count);
  return kLaneNumbers < limit;
}

constexpr IntVec kAllLanes = IntVec{} - 1;
QACG_INLINE Vec keep_where(IntVec mask, Vec v) { return (Vec)(mask & (IntVec)v); }

// Calls f with each run-time flag as a compile-time one, so that an inner loop tests none.
template <bool kValue>
struct Flag {
  constexpr operator bool() const { return kValue; }
};
template <typename F>
QACG_INLINE void specialise(F f) {
  f();
}
template <typename F, typename... Rest>
QACG_INLINE void specialise(F f, bool flag, Rest... rest) {
  if (flag) {
    specialise([&](auto... others) { f(Flag<true>{}, others...); }, rest...);
  } else {
    specialise([&](auto... others) { f(Flag<false>{}, others...); }, rest...);
  }
}

QACG_INLINE int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
QACG_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace QACG_ISA

// float16 elements: widened when they are read, rounded to nearest even when they are written, infinite from 65520 on.
#pragma once

#include "../common/half_types.h"
#include "vec.h"

namespace QACG_ISA {

using qacg::Float16;  // widen() and narrow() of one element are in common/half_types.h

#if defined(__AVX512F__)
constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
QACG_INLINE Vec load(const Float16* p) {
  return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
QACG_INLINE void store(Float16* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph((__m512)v, kToNearest));
}
QACG_INLINE void stream(Float16* p, Vec v) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph((__m512)v, kToNearest));
}
#elif defined(__AVX2__)
constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
QACG_INLINE Vec load(const Float16* p) {
  return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
QACG_INLINE void store(Float16* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph((__m256)v, kToNearest));
}
QACG_INLINE void stream(Float16* p, Vec v) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph((__m256)v, kToNearest));
}
#elif defined(__aarch64__)
QACG_INLINE Vec load(const Float16* p) {
  return (Vec)vcvt_f32_f16((float16x4_t)vld1_u16(reinterpret_cast<const uint16_t*>(p)));
}
QACG_INLINE void store(Float16* p, Vec v) {
  vst1_u16(reinterpret_cast<uint16_t*>(p), (uint16x4_t)vcvt_f16_f32((float32x4_t)v));
}
QACG_INLINE void stream(Float16* p, Vec v) { store(p, v); }
#else
QACG_INLINE Vec load(const Float16* p) {
  Vec v;
  for (int l = 0; l < kLanes; ++l) v[l] = qacg::widen(p[l]);
  return v;
}
QACG_INLINE void store(Float16* p, Vec v) {
  for (int l = 0; l < kLanes; ++l) qacg::narrow(v[l], p[l]);
}
QACG_INLINE void stream(Float16* p, Vec v) { store(p, v); }
#endif
QACG_INLINE void store_one(Float16* p, float x) { qacg::narrow(x, *p); }

}  // namespace QACG_ISA

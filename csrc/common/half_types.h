// float16 and bfloat16 as bits, and their conversions, rounded to nearest even.
#pragma once

#include <stdint.h>
#if !defined(__CUDA_ARCH__)
#include <string.h>
#endif

#include "inline.h"

namespace qacg {

struct Float16 {
  uint16_t bits;
};

struct Bfloat16 {
  uint16_t bits;
};

#if !defined(__CUDA_ARCH__)
QACG_SHARED uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

QACG_SHARED float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}
#endif

QACG_SHARED float widen(float x) { return x; }

QACG_SHARED float widen(Bfloat16 x) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
#else
  return float_of(static_cast<uint32_t>(x.bits) << 16);
#endif
}

QACG_SHARED float widen(Float16 x) {
#if defined(__CUDA_ARCH__)
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
#else
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
  if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // Multiplying by 2^112 corrects the bias of the exponent and makes subnormal numbers normal. The product is exact.
  return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
#endif
}

QACG_SHARED void narrow(float x, float& to) { to = x; }

QACG_SHARED void narrow(float x, Bfloat16& to) {
#if defined(__CUDA_ARCH__)
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
#else
  const uint32_t bits = bits_of(x);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to.bits = static_cast<uint16_t>(nan ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
#endif
}

QACG_SHARED void narrow(float x, Float16& to) {
#if defined(__CUDA_ARCH__)
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
#else
  const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  uint32_t half;
  if (size > 0x7f800000u) {
    half = 0x7fffu;
  } else if (size >= 0x477ff000u) {  // 65520, half way from the largest number to the next power of two
    half = 0x7c00u;
  } else if (size < 0x38800000u) {  // below 2^-14: adding 1/2 rounds to float16's spacing there, 2^-24
    half = bits_of(float_of(size) + 0.5f) - 0x3f000000u;
  } else {
    half = (size - 0x38000000u + 0xfffu + (size >> 13 & 1)) >> 13;
  }
  to.bits = static_cast<uint16_t>(sign | half);
#endif
}

// Two numbers in one register, the first in the low half.
QACG_SHARED uint32_t narrow_pair(float low, float high, Bfloat16) {
#if defined(__CUDA_ARCH__)
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  Bfloat16 a, b;
  narrow(low, a);
  narrow(high, b);
  return a.bits | static_cast<uint32_t>(b.bits) << 16;
#endif
}

QACG_SHARED uint32_t narrow_pair(float low, float high, Float16) {
#if defined(__CUDA_ARCH__)
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  Float16 a, b;
  narrow(low, a);
  narrow(high, b);
  return a.bits | static_cast<uint32_t>(b.bits) << 16;
#endif
}

}  // namespace qacg

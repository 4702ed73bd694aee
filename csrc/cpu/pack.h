// Copies of operands in the order in which the products read them, padded with zeros to whole registers.
#pragma once

#include <initializer_list>

#include "float16.h"
#include "vec.h"

namespace QACG_ISA {

typedef uint16_t HalfBits;  // a bfloat16
typedef HalfBits HalfVec __attribute__((vector_size(2 * kLanes)));
typedef HalfBits UnalignedHalfVec __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));

QACG_INLINE float widen(float x) { return x; }
QACG_INLINE float widen(HalfBits x) {
  const uint32_t wide = static_cast<uint32_t>(x) << 16;
  float result;
  memcpy(&result, &wide, sizeof(result));
  return result;
}

// One instruction widens a register; GCC 12 splits __builtin_convertvector into five.
#if defined(__AVX512F__)
QACG_INLINE UintVec widen_bits(const HalfBits* p) {
  return (UintVec)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
#elif defined(__AVX2__)
QACG_INLINE UintVec widen_bits(const HalfBits* p) {
  return (UintVec)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
#else
QACG_INLINE UintVec widen_bits(const HalfBits* p) {
  return __builtin_convertvector(*reinterpret_cast<const UnalignedHalfVec*>(p), UintVec);
}
#endif
QACG_INLINE Vec load(const HalfBits* p) { return (Vec)(widen_bits(p) << 16); }

// Rounds to nearest even; a NaN stays a (quiet) NaN. AVX-512's instruction also flushes numbers below 2^-126 to 0.
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
QACG_INLINE HalfVec narrow(Vec v) { return (HalfVec)vcvt_bf16_f32((float32x4_t)v); }
#elif defined(__AVX512BF16__)
QACG_INLINE HalfVec narrow(Vec v) { return (HalfVec)_mm512_cvtneps_pbh((__m512)v); }
#else
QACG_INLINE HalfVec narrow(Vec v) {
  const UintVec b = (UintVec)v;
  const UintVec rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
  const UintVec is_nan = (UintVec)(v != v);
  return __builtin_convertvector((is_nan & 0x7fc0u) | (~is_nan & rounded), HalfVec);
}
#endif
QACG_INLINE HalfBits narrow(float x) {
  uint32_t b;
  memcpy(&b, &x, sizeof(b));
  if (x != x) return 0x7fc0;
  return static_cast<HalfBits>((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}
QACG_INLINE void store(HalfBits* p, Vec v) { *reinterpret_cast<UnalignedHalfVec*>(p) = narrow(v); }
#if defined(__AVX512F__)
QACG_INLINE void stream(HalfBits* p, Vec v) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)narrow(v)); }
#elif defined(__AVX2__)
QACG_INLINE void stream(HalfBits* p, Vec v) { _mm_stream_si128(reinterpret_cast<__m128i*>(p), (__m128i)narrow(v)); }
#else
QACG_INLINE void stream(HalfBits* p, Vec v) { store(p, v); }
#endif
#if defined(__AVX512BF16__)
// Rounds two registers to consecutive elements, by one instruction.
QACG_INLINE void store_both(HalfBits* to, Vec low, Vec high) {
  const Vec both = (Vec)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  memcpy(to, &both, sizeof(both));
}
#endif
// Interleaves a register of elements of two rows.
QACG_INLINE void store_joined(const HalfBits* even, const HalfBits* odd, HalfBits* to) {
  const UintVec joined = widen_bits(even) | widen_bits(odd) << 16;
  memcpy(to, &joined, sizeof(joined));
}
// A register of kLanes pairs: elements d to d + 2 kLanes - 1 of a row, zero beyond the head size.
QACG_INLINE Vec pairs_of(const HalfBits* row, int64_t d, int64_t head_dim) {
  constexpr int64_t kPairs = 2 * kLanes;
  Vec result = Vec{};
  if (d + kPairs <= head_dim) {
    memcpy(&result, row + d, sizeof(result));
  } else if (d < head_dim) {
    memcpy(&result, row + d, (head_dim - d) * sizeof(HalfBits));
  }
  return result;
}
QACG_INLINE void store_one(float* p, float x) { *p = x; }
QACG_INLINE void store_one(HalfBits* p, float x) { *p = narrow(x); }

// One row of `count` elements to float32, zeros up to `padded`.
template <typename Scalar>
QACG_INLINE void widen_row(const Scalar* from, int64_t count, int64_t padded, float* to) {
  int64_t d = 0;
  for (; d + kLanes <= count; d += kLanes) store(to + d, load(from + d));
  for (; d < count; ++d) to[d] = widen(from[d]);
  for (; d < padded; ++d) to[d] = 0;
}

// Writes factor * from to a row of the output type; past the caches if `streams`, which requires rows of whole cache
// lines.
template <typename Scalar>
QACG_INLINE void write_row(const float* from, float factor, int64_t count, Scalar* to, bool streams = false) {
  int64_t d = 0;
  for (; d + kLanes <= count; d += kLanes) {
    const Vec v = factor * load(from + d);
    streams ? stream(to + d, v) : store(to + d, v);
  }
  for (; d < count; ++d) store_one(to + d, factor * from[d]);
}

#if defined(__AVX512F__)
#define QACG_AVX(name) _mm512_##name
typedef __m512d DoubleVec;
// Four elements of rows 0, 4, 8 and 12.
QACG_INLINE Vec load_every_fourth_row(const float* from, int64_t stride) {
  __m512 rows = _mm512_castps128_ps512(_mm_loadu_ps(from));
  rows = _mm512_insertf32x4(rows, _mm_loadu_ps(from + 4 * stride), 1);
  rows = _mm512_insertf32x4(rows, _mm_loadu_ps(from + 8 * stride), 2);
  return (Vec)_mm512_insertf32x4(rows, _mm_loadu_ps(from + 12 * stride), 3);
}
#elif defined(__AVX2__)
#define QACG_AVX(name) _mm256_##name
typedef __m256d DoubleVec;
// Four elements of rows 0 and 4.
QACG_INLINE Vec load_every_fourth_row(const float* from, int64_t stride) {
  return (Vec)_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from)), _mm_loadu_ps(from + 4 * stride), 1);
}
#endif

#if defined(__AVX2__)
// Returns four columns of kLanes rows. rows[r] contains four elements of each of the rows r, r + 4, ...
QACG_INLINE void columns_of(const Vec (&rows)[4], Vec* columns) {
  const auto row = [&](int r) QACG_INLINE_LAMBDA { return (decltype(QACG_AVX(setzero_ps)()))rows[r]; };
  const DoubleVec low01 = (DoubleVec)QACG_AVX(unpacklo_ps)(row(0), row(1));
  const DoubleVec high01 = (DoubleVec)QACG_AVX(unpackhi_ps)(row(0), row(1));
  const DoubleVec low23 = (DoubleVec)QACG_AVX(unpacklo_ps)(row(2), row(3));
  const DoubleVec high23 = (DoubleVec)QACG_AVX(unpackhi_ps)(row(2), row(3));
  columns[0] = (Vec)QACG_AVX(unpacklo_pd)(low01, low23);
  columns[1] = (Vec)QACG_AVX(unpackhi_pd)(low01, low23);
  columns[2] = (Vec)QACG_AVX(unpacklo_pd)(high01, high23);
  columns[3] = (Vec)QACG_AVX(unpackhi_pd)(high01, high23);
}
#endif

#if defined(__AVX512F__)
// Lane l of the result is lane order(l) of the pair (a, b), in which b's lanes count from kLanes. The order is listed
// as constants: if a loop filled it, GCC 12 would run that loop at each use.
template <int (*order)(int)>
QACG_INLINE Vec picked(Vec a, Vec b) {
  constexpr IntVec kOrder = {order(0), order(1), order(2),  order(3),  order(4),  order(5),  order(6),  order(7),
                             order(8), order(9), order(10), order(11), order(12), order(13), order(14), order(15)};
  return (Vec)_mm512_permutex2var_ps((__m512)a, (__m512i)kOrder, (__m512)b);
}
template <int s>
constexpr int upper_lane(int l) {
  return l & s ? kLanes + l - s : l;
}
template <int s>
constexpr int lower_lane(int l) {
  return l & s ? kLanes + l : l + s;
}

// Swaps the off-diagonal halves of all squares of 2s x 2s.
template <int s>
QACG_INLINE void transpose_squares(Vec (&v)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (i & s) continue;
    const Vec a = v[i], b = v[i + s];
    v[i] = picked<upper_lane<s>>(a, b);
    v[i + s] = picked<lower_lane<s>>(a, b);
  }
}
#endif

// Transposes the kLanes x kLanes block in `v`.
QACG_INLINE void transpose(Vec (&v)[kLanes]) {
#if defined(__aarch64__)
  const float32x4_t rows[4] = {(float32x4_t)v[0], (float32x4_t)v[1], (float32x4_t)v[2], (float32x4_t)v[3]};
  const float64x2_t even01 = (float64x2_t)vtrn1q_f32(rows[0], rows[1]);
  const float64x2_t odd01 = (float64x2_t)vtrn2q_f32(rows[0], rows[1]);
  const float64x2_t even23 = (float64x2_t)vtrn1q_f32(rows[2], rows[3]);
  const float64x2_t odd23 = (float64x2_t)vtrn2q_f32(rows[2], rows[3]);
  v[0] = (Vec)vtrn1q_f64(even01, even23);
  v[1] = (Vec)vtrn1q_f64(odd01, odd23);
  v[2] = (Vec)vtrn2q_f64(even01, even23);
  v[3] = (Vec)vtrn2q_f64(odd01, odd23);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  Vec low[4], high[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    low[r] = (Vec)_mm256_permute2f128_ps((__m256)v[r], (__m256)v[r + 4], 0x20);
    high[r] = (Vec)_mm256_permute2f128_ps((__m256)v[r], (__m256)v[r + 4], 0x31);
  }
  columns_of(low, v);
  columns_of(high, v + 4);
#elif defined(__AVX512F__)
  transpose_squares<1>(v);
  transpose_squares<2>(v);
  transpose_squares<4>(v);
  transpose_squares<8>(v);
#elif !defined(__clang__)
#pragma GCC unroll 4
  for (int s = 1; s < kLanes; s *= 2) {
    IntVec upper, lower;  // lane numbers in the pair (a, b): b's lanes count from kLanes
    for (int l = 0; l < kLanes; ++l) {
      upper[l] = l & s ? kLanes + l - s : l;
      lower[l] = l & s ? kLanes + l : l + s;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i & s) continue;
      const Vec a = v[i], b = v[i + s];
      v[i] = __builtin_shuffle(a, b, upper);
      v[i + s] = __builtin_shuffle(a, b, lower);
    }
  }
#else
  for (int i = 0; i < kLanes; ++i)
    for (int j = 0; j < i; ++j) {
      const float x = v[i][j];
      v[i][j] = v[j][i];
      v[j][i] = x;
    }
#endif
}

// v[i] = column i of kLanes rows, `stride` apart. With AVX the loads put parts of rows in place, which leaves half of
// the shuffles or less.
QACG_INLINE void load_columns(const float* from, int64_t stride, Vec (&v)[kLanes]) {
#if defined(__AVX2__)
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4) {
    Vec rows[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) rows[r] = load_every_fourth_row(from + r * stride + i, stride);
    columns_of(rows, v + i);
  }
#else
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) v[i] = load(from + i * stride);
  transpose(v);
#endif
}

// v[i] = column i of kLanes rows of any element type. Only `rows` rows and `columns` columns exist; the rest are zeros.
template <typename Scalar>
QACG_INLINE void load_columns(const Scalar* from, int64_t stride, int64_t rows, int64_t columns, Vec (&v)[kLanes]) {
  if (rows >= kLanes && columns >= kLanes) {
    if constexpr (sizeof(Scalar) == sizeof(float)) {
      load_columns(from, stride, v);
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) v[i] = load(from + i * stride);
      transpose(v);
    }
    return;
  }
  alignas(64) float block[kLanes * kLanes] = {};
  for (int64_t i = 0; i < smaller(rows, kLanes) && columns > 0; ++i) {
    widen_row(from + i * stride, smaller(columns, kLanes), kLanes, block + i * kLanes);
  }
  load_columns(block, kLanes, v);
}

// Engines that read the caller's keys and values in place define a type for them, Right.
template <typename Engine>
concept ReadsInPlace = requires { typename Engine::Right; };
template <typename Engine>
struct RightOf {
  using Type = const typename Engine::Packed*;
};
template <ReadsInPlace Engine>
struct RightOf<Engine> {
  using Type = typename Engine::Right;
};
template <typename Engine>
using Right = typename RightOf<Engine>::Type;

// The right operand of scores: the caller's rows if the engine reads them in place, else packed into `to`.
template <typename Engine>
QACG_INLINE Right<Engine> panels_of(const typename Engine::Scalar* from, int64_t stride, int64_t rows, int64_t head_dim,
                                    typename Engine::Packed* to) {
  if constexpr (ReadsInPlace<Engine>) {
    return {from, stride, rows};
  } else {
    Engine::pack_panels(from, stride, rows, head_dim, to);
    return to;
  }
}

// The most elements of scratch that panels_of() and summed_rows() need.
template <typename Engine>
int64_t panels_scratch(int64_t keys, int64_t dim) {
  return ReadsInPlace<Engine> ? 0 : Engine::panels_size(keys, dim);
}
template <typename Engine>
int64_t rows_scratch(int64_t keys, int64_t dim) {
  return ReadsInPlace<Engine> ? 0 : Engine::rows_size(keys, dim);
}

// The right operand of sums over rows: the caller's rows if the engine can read them, else packed into `to`.
template <typename Engine>
QACG_INLINE Right<Engine> summed_rows(const typename Engine::Scalar* from, int64_t stride, int64_t rows,
                                      int64_t head_dim, typename Engine::Packed* to) {
  if constexpr (ReadsInPlace<Engine>) {
    return {from, stride, rows};
  } else {
    if constexpr (requires { Engine::reads_in_place(stride, head_dim); }) {
      if (Engine::reads_in_place(stride, head_dim)) return from;
    }
    Engine::pack_rows(from, stride, rows, head_dim, to);
    return to;
  }
}

// Like summed_rows(), for key_sums(). Some engines can sum rows in the layout of the left operand.
template <typename Engine>
QACG_INLINE const typename Engine::Packed* key_summed_rows(const typename Engine::Left& left,
                                                           const typename Engine::Scalar* from, int64_t stride,
                                                           int64_t rows, int64_t head_dim,
                                                           typename Engine::Packed* to) {
  if constexpr (requires { Engine::sums_left(left, head_dim); }) {
    if (Engine::sums_left(left, head_dim)) return left.data;
  }
  Engine::pack_summed(from, stride, rows, head_dim, to);
  return to;
}

// A bump allocator over one thread's scratch.
class Arena {
 public:
  explicit Arena(void* base) : next_(static_cast<char*>(base)) {}
  template <typename T>
  T* take(int64_t count) {
    T* result = reinterpret_cast<T*>(next_);
    next_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return result;
  }
  int64_t used(const void* base) const { return next_ - static_cast<const char*>(base); }

 private:
  char* next_;
};

}  // namespace QACG_ISA

// Which keys a query sees, which attention entries of its row dropout keeps, and its gates.
#pragma once

#include "../common/log2e.h"
#include "../common/mask.h"
#include "../common/philox.h"
#include "pack.h"
#include "problem.h"

namespace QACG_ISA {

using qacg::kLog2e;

constexpr float kInfinity = __builtin_inff();

// One sequence and head: where its rows begin and how many there are.
struct Sequence {
  int64_t index, head, first_row, queries, keys;
};

QACG_INLINE Sequence sequence_of(const qacg::Problem& p, int64_t index, int64_t head) {
  if (p.cu_seqlens) {
    const int64_t first = p.cu_seqlens[index], length = p.cu_seqlens[index + 1] - first;
    return {index, head, first, length, length};
  }
  int64_t keys = p.key_length;
  if (p.key_lengths) {
    keys = smaller(keys, p.key_lengths[index]);
    if (keys < 0) keys = 0;
  }
  return {index, head, 0, p.query_length, keys};
}

template <typename Scalar>
QACG_INLINE Scalar* row_of(const qacg::Tensor4& t, const Sequence& s, int64_t i) {
  return static_cast<Scalar*>(t.data) + s.index * t.batch + s.head * t.head + (s.first_row + i) * t.row;
}

QACG_INLINE float& at(const qacg::Rows& r, const Sequence& s, int64_t i) {
  return r.data[s.index * r.batch + s.head * r.head + (s.first_row + i) * r.row];
}

// The number of keys that lengths and causality leave visible to query i.
QACG_INLINE int64_t seen_keys(const qacg::Problem& p, const Sequence& s, int64_t i) {
  return p.is_causal ? smaller(s.keys, i + 1) : s.keys;
}

QACG_INLINE constexpr float hiding_bias(const float*) { return qacg::kHidingFloat32; }
QACG_INLINE constexpr float hiding_bias(const HalfBits*) { return qacg::kHidingBfloat16; }
QACG_INLINE constexpr float hiding_bias(const Float16*) { return qacg::kHidingFloat16; }

// The offset of the mask's value for query i and key `first`, in elements.
QACG_INLINE int64_t mask_offset(const qacg::Problem& p, const Sequence& s, int64_t i, int64_t first) {
  return s.index * p.mask_strides[0] + s.head * p.mask_strides[1] + i * p.mask_strides[2] + first * p.mask_strides[3];
}

// The part of scale_row() for calls with a mask or a scale that is not positive, for which a factor is not sufficient.
template <typename Scalar>
inline float mask_row(const qacg::Problem& p, const Sequence& s, int64_t i, int64_t first, int64_t count,
                      float* scores) {
  const float factor = p.scale * kLog2e;
  const int64_t offset = mask_offset(p, s, i, first), step = p.mask_strides[3];
  if (p.mask_kind == qacg::Mask::kBoolean) {
    const uint8_t* mask = static_cast<const uint8_t*>(p.mask) + offset;
    for (int64_t j = 0; j < count; ++j) scores[j] = mask[j * step] ? scores[j] * factor : -kInfinity;
    return 1;
  }
  if (p.mask_kind == qacg::Mask::kAdditive) {
    const Scalar* mask = static_cast<const Scalar*>(p.mask) + offset;
    const float hiding = hiding_bias(mask);
    for (int64_t j = 0; j < count; ++j) {
      const float bias = widen(mask[j * step]);
      scores[j] = bias <= hiding ? -kInfinity : scores[j] * p.scale + bias;
    }
    return kLog2e;
  }
  // A scale below 0 reverses the order of the scores, so they are scaled before the softmax searches their maximum.
  for (int64_t j = 0; j < count; ++j) scores[j] *= factor;
  return 1;
}

// Applies scale and mask to the scores of query i against keys [first, first + count). Returns the factor that turns
// them into exponents of 2. A hidden key gets -inf, whatever its score. With an additive mask the scores stay exponents
// of e: a finite bias times log2 e may be infinite. Forward and backward must round alike, so both call this function.
template <typename Scalar>
QACG_INLINE float scale_row(const qacg::Problem& p, const Sequence& s, int64_t i, int64_t first, int64_t count,
                            float* scores) {
  if (p.mask_kind == qacg::Mask::kNone && p.scale > 0) return p.scale * kLog2e;
  return mask_row<Scalar>(p, s, i, first, count, scores);
}

// Whether query i sees one of the first `count` keys.
template <typename Scalar>
inline bool sees_a_key(const qacg::Problem& p, const Sequence& s, int64_t i, int64_t count) {
  if (p.mask_kind == qacg::Mask::kNone) return count > 0;
  const int64_t offset = mask_offset(p, s, i, 0), step = p.mask_strides[3];
  for (int64_t j = 0; j < count; ++j) {
    if (p.mask_kind == qacg::Mask::kBoolean) {
      if (static_cast<const uint8_t*>(p.mask)[offset + j * step]) return true;
    } else {
      const Scalar* mask = static_cast<const Scalar*>(p.mask) + offset;
      if (!(widen(mask[j * step]) <= hiding_bias(mask))) return true;
    }
  }
  return false;
}

// The bias of query i's context scores, as an exponent of 2.
QACG_INLINE float quasi_bias_of_row(const qacg::Problem& p, const Sequence& s, int64_t i) {
  return p.quasi_bias.data ? at(p.quasi_bias, s, i) * kLog2e : 0.0f;
}

// Products of the lanes with a constant, as high and low words.
#if defined(__AVX512F__)
QACG_INLINE void multiply(UintVec a, uint32_t constant, UintVec& high, UintVec& low) {
  const __m512i factor = _mm512_set1_epi64(constant);
  const __m512i even = _mm512_mul_epu32((__m512i)a, factor);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), factor);
  low = (UintVec)_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
  high = (UintVec)_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
}
#elif defined(__AVX2__)
QACG_INLINE void multiply(UintVec a, uint32_t constant, UintVec& high, UintVec& low) {
  const __m256i factor = _mm256_set1_epi64x(constant);
  const __m256i even = _mm256_mul_epu32((__m256i)a, factor);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), factor);
  low = (UintVec)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  high = (UintVec)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}
#elif defined(__aarch64__)
QACG_INLINE void multiply(UintVec a, uint32_t constant, UintVec& high, UintVec& low) {
  const uint32x4_t first = (uint32x4_t)vmull_n_u32(vget_low_u32((uint32x4_t)a), constant);
  const uint32x4_t second = (uint32x4_t)vmull_high_n_u32((uint32x4_t)a, constant);
  low = (UintVec)vuzp1q_u32(first, second);
  high = (UintVec)vuzp2q_u32(first, second);
}
#else
QACG_INLINE void multiply(UintVec a, uint32_t constant, UintVec& high, UintVec& low) {
  for (int l = 0; l < kLanes; ++l) {
    const uint64_t product = static_cast<uint64_t>(a[l]) * constant;
    high[l] = static_cast<uint32_t>(product >> 32);
    low[l] = static_cast<uint32_t>(product);
  }
}
#endif

// Writes which entries of row i dropout keeps to `keep`, one number per key from `first` on: all-ones if kept, else 0.
// `first` is a multiple of 128, and the last block of 128 keys is written completely.
inline void keep_row(const qacg::Problem& p, const Sequence& s, int64_t i, int64_t first, int64_t count,
                     int32_t* keep) {
  const uint32_t head_counter = static_cast<uint32_t>(s.index * p.heads + s.head);
  for (int64_t block = 0; block < count; block += qacg::kDropoutBlock) {
    const uint32_t group0 = static_cast<uint32_t>((first + block) / qacg::kDropoutBlock * qacg::kDropoutGroups);
    for (int lane0 = 0; lane0 < qacg::kDropoutGroups; lane0 += kLanes) {
      UintVec c0 = (UintVec)kLaneNumbers + (group0 + lane0), c1 = UintVec{} + static_cast<uint32_t>(i),
              c2 = UintVec{} + head_counter, c3 = UintVec{};
      uint32_t k0 = static_cast<uint32_t>(p.seed), k1 = static_cast<uint32_t>(p.seed >> 32);
#pragma GCC unroll 7
      for (int round = 0; round < qacg::kPhiloxRounds; ++round) {
        UintVec high0, low0, high1, low1;
        multiply(c0, qacg::kPhiloxMultiplier0, high0, low0);
        multiply(c2, qacg::kPhiloxMultiplier1, high1, low1);
        c0 = high1 ^ c1 ^ k0;
        c2 = high0 ^ c3 ^ k1;
        c1 = low1;
        c3 = low0;
        k0 += qacg::kPhiloxWeyl0;
        k1 += qacg::kPhiloxWeyl1;
      }
      const UintVec words[4] = {c0, c1, c2, c3};
#pragma GCC unroll 4
      for (int w = 0; w < 4; ++w) {
        int32_t* even = keep + block + 2 * w * qacg::kDropoutGroups + lane0;
        const IntVec low_half = (IntVec)((words[w] & 0xffffu) >= p.drop_threshold);
        const IntVec high_half = (IntVec)((words[w] >> 16) >= p.drop_threshold);
        memcpy(even, &low_half, sizeof(low_half));
        memcpy(even + qacg::kDropoutGroups, &high_half, sizeof(high_half));
      }
    }
  }
}

QACG_INLINE IntVec load_mask(const int32_t* p) {
  IntVec v;
  memcpy(&v, p, sizeof(v));
  return v;
}

// sum_d x_d v_d over a row of any type and a float32 vector.
template <typename Scalar>
QACG_INLINE float dot(const Scalar* x, const float* v, int64_t count) {
  Vec total = Vec{};
  int64_t d = 0;
  for (; d + kLanes <= count; d += kLanes) total += load(x + d) * load(v + d);
  float result = sum(total);
  for (; d < count; ++d) result += widen(x[d]) * v[d];
  return result;
}

QACG_INLINE float sigmoid(float x) { return 1.0f / (1.0f + __builtin_expf(-x)); }

// sigmoid(x_i . v + c_i . w + b) of a row: eq. 4 for the queries (side 0) or the keys (side 1). A row gate reads the
// key at the query's own position whatever the length; a column gate counts keys at and beyond the length as zeros.
template <typename Scalar>
inline float gate_of_row(const qacg::Problem& p, const Sequence& s, int64_t i, int side) {
  const float bias = p.gate_biases[side * p.heads + s.head];
  if (side == 1 && p.column_gate && i >= s.keys) return sigmoid(bias);
  const float* vector = p.gate_vectors + (2 * side * p.heads + s.head) * p.head_dim;
  const float* context_vector = vector + p.heads * p.head_dim;
  const Scalar* x = row_of<Scalar>(side ? p.key : p.query, s, i);
  const Scalar* c = row_of<Scalar>(side ? p.context_key : p.context_query, s, i);
  return sigmoid(dot(x, vector, p.head_dim) + dot(c, context_vector, p.head_dim) + bias);
}

}  // namespace QACG_ISA

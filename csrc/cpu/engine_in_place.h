// Products that read keys and values in place, for calls with few queries or few keys: if an operand is used only once
// or twice, packing it takes longer than it saves (NOTES.md).
//
// A score is a dot product along the head size. kKeysAtOnce keys and up to kRowsAtOnce queries are processed together,
// with one register per score; the lanes of four such registers are then added up together. Sums over keys add rows
// of values. Operands of 16 bits are widened when they are read.
#pragma once

#include "engine_f32.h"

namespace QACG_ISA {

// Sums of lanes, four keys at a time: lane 4q + k of the partial sums is the sum of v[k]'s lanes 4q to 4q + 3.
#if defined(__AVX512F__)
template <int s>
constexpr int across_lane(int l) {
  return l & s ? kLanes + l - s : l + s;
}
#endif
#if defined(__AVX2__)
// Lane l of the result: a[l] + a[l + s] where l & s is 0, else b[l] + b[l - s].
template <int s>
QACG_INLINE Vec add_across(Vec a, Vec b) {
#if defined(__AVX512F__)
  constexpr int kBits = s == 1 ? 0xaaaa : s == 2 ? 0xcccc : s == 4 ? 0xf0f0 : 0xff00;
  const Vec own = (Vec)_mm512_mask_blend_ps(kBits, (__m512)a, (__m512)b);
  return own + picked<across_lane<s>>(a, b);
#else
  const __m256 x = (__m256)a, y = (__m256)b;
  if constexpr (s == 4) return (Vec)(_mm256_permute2f128_ps(x, y, 0x20) + _mm256_permute2f128_ps(x, y, 0x31));
  constexpr int kBits = s == 1 ? 0xaa : 0xcc, kOrder = s == 1 ? 0xb1 : 0x4e;
  return (Vec)(_mm256_blend_ps(x, y, kBits) + _mm256_permute_ps(_mm256_blend_ps(y, x, kBits), kOrder));
#endif
}
QACG_INLINE Vec partial_sums(const Vec (&v)[4]) {
  return add_across<2>(add_across<1>(v[0], v[1]), add_across<1>(v[2], v[3]));
}
#elif defined(__aarch64__)
QACG_INLINE Vec partial_sums(const Vec (&v)[4]) {
  return (Vec)vpaddq_f32(vpaddq_f32((float32x4_t)v[0], (float32x4_t)v[1]),
                         vpaddq_f32((float32x4_t)v[2], (float32x4_t)v[3]));
}
#else
QACG_INLINE Vec partial_sums(const Vec (&v)[4]) {
  Vec w[4] = {v[0], v[1], v[2], v[3]};
  transpose(w);
  return (w[0] + w[1]) + (w[2] + w[3]);
}
#endif

// The sums of kLanes keys, from one register of partial sums for each four keys.
QACG_INLINE Vec joined(const Vec (&v)[kLanes / 4]) {
#if defined(__AVX512F__)
  return add_across<8>(add_across<4>(v[0], v[1]), add_across<4>(v[2], v[3]));
#elif defined(__AVX2__)
  return add_across<4>(v[0], v[1]);
#else
  return v[0];
#endif
}

// The sum of v's lanes, added in the order of partial_sums() and joined().
QACG_INLINE float sum_of(Vec v) {
  const Vec partial = partial_sums({v, v, v, v});
  Vec same[kLanes / 4];
  for (Vec& s : same) s = partial;
  return joined(same)[0];
}

// Replaces `PackingEngine` in calls in which packing does not save time (see takes()).
template <typename PackingEngine>
struct InPlaceEngine : Float32Engine<typename PackingEngine::Scalar> {
  using Scalar = typename PackingEngine::Scalar;
  using Packed = float;
  using Left = QACG_ISA::Left;
  // The caller's rows, as the right operand of scores and of sums over keys.
  struct Right {
    const Scalar* data;
    int64_t stride, rows;
  };
  static constexpr int64_t kRowBlock = PackingEngine::kRowBlock;  // a unit counts blocks before the engine is chosen
  static constexpr int64_t kWholeRowKeys = 8192;                  // of few queries
  static constexpr int64_t kRowsAtOnce = kRegisters == 32 ? 4 : 2, kKeysAtOnce = 4, kAheadQueries = 16;

  explicit InPlaceEngine(const qacg::Problem& p)
      : Float32Engine<Scalar>(p), ahead_rows_(kAheadBytes / (p.head_dim * static_cast<int64_t>(sizeof(Scalar))) | 1) {}

  static constexpr int64_t kFewQueries = 8, kFewKeys = 8;
  static constexpr int64_t kLargestPairs = 256 / (2 * kLanes);  // registers of the largest head size
  // Whether a call has so few queries or keys that packing does not save time. The head size must fill whole registers.
  static bool takes(const qacg::Problem& p, int64_t longest_query, int64_t longest_key) {
    return p.head_dim % kLanes == 0 && (longest_query <= kFewQueries || longest_key <= kFewKeys);
  }

  // C (rows x cols) = A X^T for the rows of X from `first` on; zeros beyond the last.
  void scores(int64_t rows, int64_t cols, int64_t dim, Left a, const Right& x, int64_t first, float* c,
              int64_t c_stride) {
    for (int64_t n = 0; n < cols; n += kLanes) {
      const Scalar* keys = x.data + (first + n) * x.stride;
      const int64_t count = smaller(kLanes, x.rows - first - n);
      int64_t r = 0;
      if (count < kKeysAtOnce) {
        for (int64_t k = 0; k < count; ++k) fetch_ahead(keys + k * x.stride, x.stride, dim);
        for (; r < rows; ++r) {
          const float* query = a.data + r * a.row_stride;
          for (int64_t d = 0; rows > kAheadQueries && d < dim; d += 16) {
            __builtin_prefetch(query + kAheadQueries * a.row_stride + d, 0, 2);
          }
          few_keys(count, dim, query, keys, x.stride, c + r * c_stride + n);
        }
        continue;
      }
      for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce) {
        key_group<kRowsAtOnce>(count, dim, a, r, keys, x.stride, c + r * c_stride + n, c_stride);
      }
      for (; r < rows; ++r) key_group<1>(count, dim, a, r, keys, x.stride, c + r * c_stride + n, c_stride);
    }
  }

  // C (rows x dim) = or += A X for the rows of X from `first` on.
  void weighted_sum(int64_t rows, int64_t depth, int64_t dim, Left a, const Right& x, int64_t first, float* c,
                    bool accumulate) {
    for (int64_t k = 0; k < depth; k += kDepth) {
      const int64_t part = smaller(kDepth, depth - k);
      const Scalar* values = x.data + (first + k) * x.stride;
      const bool add = accumulate || k > 0;
      Left weights = {a.data + k * a.col_stride, a.row_stride, a.col_stride};
      int64_t r = 0;
      for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce, weights.data += kRowsAtOnce * a.row_stride) {
        all_columns<kRowsAtOnce, 4>(dim, part, weights, values, x.stride, c + r * dim, dim, add);
      }
      for (; r < rows; ++r, weights.data += a.row_stride) {
        all_columns<1, 8>(dim, part, weights, values, x.stride, c + r * dim, dim, add);
      }
    }
  }

  // T^T X for a tile T (rows x keys) and `rows` rows of X. Calls put(key, d, sum) for every register of every key's
  // sum.
  template <typename Put>
  static QACG_INLINE void sums_over_queries(const float* tile, int64_t stride, int64_t rows, int64_t keys, int64_t dim,
                                            const float* x, const Put& put) {
    int64_t d = 0;
    for (; d + 4 * kLanes <= dim; d += 4 * kLanes) key_columns<4>(tile, stride, rows, keys, dim, x + d, d, put);
    for (; d < dim; d += kLanes) key_columns<1>(tile, stride, rows, keys, dim, x + d, d, put);
  }

  // Prefetches `count` elements of the row that is ahead_rows_ after `row`, because the hardware prefetcher does not
  // keep up with operands that are read once. ahead_rows_ is odd: at a multiple of 4096 bytes from the row that is
  // read, prefetches are a quarter slower (NOTES.md).
  static constexpr int64_t kAheadBytes = 6144;
  QACG_INLINE void fetch_ahead(const Scalar* row, int64_t stride, int64_t count) const {
    constexpr int64_t kLine = 64 / sizeof(Scalar);
    for (int64_t d = 0; d < count; d += kLine) __builtin_prefetch(row + ahead_rows_ * stride + d, 0, 2);
  }

 private:
  template <int kVecs, typename Put>
  static QACG_INLINE void key_columns(const float* tile, int64_t stride, int64_t rows, int64_t keys, int64_t dim,
                                      const float* x, int64_t d, const Put& put) {
    int64_t j = 0;
    for (; j + kRowsAtOnce <= keys; j += kRowsAtOnce) {
      key_block<kRowsAtOnce, kVecs>(tile + j, stride, rows, dim, x, j, d, put);
    }
    for (; j < keys; ++j) key_block<1, kVecs>(tile + j, stride, rows, dim, x, j, d, put);
  }

  template <int kKeys, int kVecs, typename Put>
  static QACG_INLINE void key_block(const float* weights, int64_t stride, int64_t rows, int64_t dim, const float* x,
                                    int64_t j, int64_t d, const Put& put) {
    Vec sums[kKeys][kVecs] = {};
    for (int64_t r = 0; r < rows; ++r) {
      Vec row[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) row[v] = load(x + r * dim + v * kLanes);
#pragma GCC unroll 4
      for (int k = 0; k < kKeys; ++k) {
        const Vec weight = splat(weights[r * stride + k]);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) sums[k][v] += weight * row[v];
      }
    }
#pragma GCC unroll 4
    for (int k = 0; k < kKeys; ++k)
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) put(j + k, d + v * kLanes, sums[k][v]);
  }

  // Scores of one query and fewer than kKeysAtOnce keys.
  static QACG_INLINE void few_keys(int64_t count, int64_t dim, const float* query, const Scalar* keys, int64_t stride,
                                   float* c) {
    store(c, Vec{});
    for (int64_t k = 0; k < count; ++k) {
      Vec total = Vec{};
      if (sums_pairs(dim)) {
        for (int64_t d = 0; d < dim; d += 2 * kLanes)
          total = add_pairs(total, narrow(query + d), keys + k * stride + d);
      } else {
        for (int64_t d = 0; d < dim; d += kLanes) total += load(query + d) * load(keys + k * stride + d);
      }
      c[k] = sum_of(total);
    }
  }

  // bfloat16 products two at a time: the queries were widened from bfloat16, so that narrowing them is exact. Not
  // beside AMX: on Intel's processors these products are no faster than float32's (NOTES.md).
#if defined(__AVX512BF16__)
  static constexpr bool kHasPairs = requires { PackingEngine::kSumsPairs; };
  static QACG_INLINE Vec narrow(const float* query) {
    return (Vec)_mm512_cvtne2ps_pbh((__m512)load(query + kLanes), (__m512)load(query));
  }
  static QACG_INLINE Vec add_pairs(Vec total, Vec query, const Scalar* key) {
    return (Vec)_mm512_dpbf16_ps((__m512)total, (__m512bh)query, (__m512bh)_mm512_loadu_si512(key));
  }
#else
  static constexpr bool kHasPairs = false;
  static QACG_INLINE Vec narrow(const float*) { return Vec{}; }
  static QACG_INLINE Vec add_pairs(Vec total, Vec, const Scalar*) { return total; }
#endif
  static QACG_INLINE bool sums_pairs(int64_t dim) { return kHasPairs && dim % (2 * kLanes) == 0; }

  // Scores of kRows queries from row `r` on and up to kLanes keys.
  template <int kRows>
  QACG_INLINE void key_group(int64_t count, int64_t dim, Left a, int64_t r, const Scalar* keys, int64_t stride,
                             float* c, int64_t c_stride) const {
    Vec partial[kRows][kLanes / 4], narrowed[kRows][kHasPairs ? kLargestPairs : 1];
    const bool pairs = sums_pairs(dim);
    if (pairs) {
      for (int m = 0; m < kRows; ++m) {
        const float* query = a.data + (r + m) * a.row_stride;
        for (int64_t d = 0; d < dim; d += 2 * kLanes) narrowed[m][d / (2 * kLanes)] = narrow(query + d);
      }
    }
    for (int64_t i = 0; i < kLanes; i += kKeysAtOnce) {
      if (i >= count) {
        for (int m = 0; m < kRows; ++m) partial[m][i / kKeysAtOnce] = Vec{};
        continue;
      }
      const Scalar* key[kKeysAtOnce];  // repeats the last key if fewer are left
      for (int k = 0; k < kKeysAtOnce; ++k) key[k] = keys + smaller(i + k, count - 1) * stride;
      for (int k = 0; k < kKeysAtOnce; ++k) fetch_ahead(keys + (i + k) * stride, stride, dim);
      Vec sums[kRows][kKeysAtOnce] = {};
      for (int64_t d = 0; pairs && d < dim; d += 2 * kLanes) {
#pragma GCC unroll 4
        for (int m = 0; m < kRows; ++m) {
          const Vec q = narrowed[m][d / (2 * kLanes)];
#pragma GCC unroll 4
          for (int k = 0; k < kKeysAtOnce; ++k) sums[m][k] = add_pairs(sums[m][k], q, key[k] + d);
        }
      }
      for (int64_t d = 0; !pairs && d < dim; d += kLanes) {
        Vec x[kKeysAtOnce];
#pragma GCC unroll 4
        for (int k = 0; k < kKeysAtOnce; ++k) x[k] = load(key[k] + d);
#pragma GCC unroll 4
        for (int m = 0; m < kRows; ++m) {
          const Vec q = load(a.data + (r + m) * a.row_stride + d);
#pragma GCC unroll 4
          for (int k = 0; k < kKeysAtOnce; ++k) sums[m][k] += q * x[k];
        }
      }
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) partial[m][i / kKeysAtOnce] = partial_sums(sums[m]);
    }
    const IntVec there = lanes_below(count);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) store(c + m * c_stride, keep_where(there, joined(partial[m])));
  }

  // Computes every column of kRows rows, in groups of kVecs registers and, for the rest, of half as many.
  template <int kRows, int kVecs>
  QACG_INLINE void all_columns(int64_t dim, int64_t depth, Left a, const Scalar* b, int64_t b_stride, float* c,
                               int64_t c_stride, bool accumulate) const {
    int64_t d = 0;
    for (; d + kVecs * kLanes <= dim; d += kVecs * kLanes) {
      row_sums<kRows, kVecs>(depth, a, b + d, b_stride, c + d, c_stride, accumulate);
    }
    if (d == dim) return;
    if constexpr (kVecs > 1) {
      all_columns<kRows, kVecs / 2>(dim - d, depth, a, b + d, b_stride, c + d, c_stride, accumulate);
    }
  }

  template <int kRows, int kVecs>
  QACG_INLINE void row_sums(int64_t depth, Left a, const Scalar* b, int64_t b_stride, float* c, int64_t c_stride,
                            bool accumulate) const {
    Vec sums[kRows][kVecs] = {};
    for (int64_t k = 0; k < depth; ++k) {
      fetch_ahead(b + k * b_stride, b_stride, kVecs * kLanes);
      Vec x[kVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) x[v] = load(b + k * b_stride + v * kLanes);
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) {
        const Vec weight = splat(a.data[m * a.row_stride + k * a.col_stride]);
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) sums[m][v] += weight * x[v];
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        float* to = c + m * c_stride + v * kLanes;
        store(to, accumulate ? load(to) + sums[m][v] : sums[m][v]);
      }
  }

  const int64_t ahead_rows_;
};

}  // namespace QACG_ISA

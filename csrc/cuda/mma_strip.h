// A strip of 16 queries and a tile of keys: masked scores, dropout, gates, the online softmax and the outputs.
#pragma once

#include "gates.h"
#include "mma_tile.h"
#include "online_softmax.h"

namespace qacg::cuda::mma {

// Sums and maxima over the four threads that share a row of a fragment.
QACG_DEVICE float quad_sum(float x) {
  x += shuffle_xor(x, 1);
  return x + shuffle_xor(x, 2);
}

QACG_DEVICE float quad_max(float x) {
  x = fmaxf(x, shuffle_xor(x, 1));
  return fmaxf(x, shuffle_xor(x, 2));
}

// Row (of the strip) and column (of the strip's keys) of this thread's element e of fragment t.
QACG_DEVICE int row_of(int e) { return lane() / 4 + e / 2 * 8; }
QACG_DEVICE int column_of(int t, int e) { return 8 * t + 2 * (lane() % 4) + e % 2; }

// The number of keys that lengths and causality leave visible to query i; 0 beyond the last query.
QACG_DEVICE int seen_by(const Problem& p, const Sequence& s, int i) { return i < s.queries ? seen_keys(p, s, i) : 0; }

// Adding -0 changes no number, not even -0, so the compiler leaves the addition out.
constexpr float kNothing = -0.0f;

// load_key_mask() stores this value for a group of 32 keys if the key mask changes none of their scores. Added to a
// score, it is too small to change it.
constexpr float kUnchangedGroup = 0x1p-126f;

// Stores what a key mask adds to the scores of kCount keys in shared memory. If each thread read the mask for each of
// its scores, every read would wait for the one before. Called by all threads of a block.
template <int kCount>
QACG_DEVICE void load_key_mask(const Problem& p, const Sequence& s, int first_key, float* key_mask) {
  if (!p.is_key_mask) return;
  const int j = first_key + thread_index();
  const float mask = thread_index() < kCount && j < s.keys ? mask_at(p, s, 0, j) : 0.0f;
  const bool unchanged = all_of_warp(mask == 0.0f);
  if (thread_index() < kCount) key_mask[thread_index()] = unchanged ? kUnchangedGroup : mask;
}

// Whether a strip of queries sees all of kCount keys and no mask adds to its scores. `key_mask` has the values of
// load_key_mask.
template <int kCount>
QACG_DEVICE bool sees_all(const Problem& p, const Sequence& s, int first_row, int first_key, const float* key_mask) {
  // The first row sees the fewest keys.
  const bool inside = first_row + kStrip <= s.queries && first_key + kCount <= seen_keys(p, s, first_row);
  if (p.mask_kind == Mask::kNone) return inside;
  if (!p.is_key_mask || !inside) return false;
  bool unchanged = true;
#pragma unroll
  for (int n = 0; n < kCount; n += kWarp) unchanged &= key_mask[n] == kUnchangedGroup;
  return unchanged;
}

// Up to this number, float32 has every integer.
constexpr int kMostExactInFloat32 = 1 << 24;

// Returns the first key between `first` and `last` from which on a key mask hides all keys; `last` for other masks and
// if it exceeds kMostExactInFloat32. Called by a whole warp, which exchanges key numbers as float32.
QACG_DEVICE int visible_stop(const Problem& p, const Sequence& s, int first, int last) {
  if (!p.is_key_mask || last > kMostExactInFloat32) return last;
  float stop = static_cast<float>(first);
#pragma unroll 1
  for (int j = first + lane(); j < last; j += kWarp) {
    if (mask_at(p, s, 0, j) != -INFINITY) stop = static_cast<float>(j + 1);
  }
#pragma unroll 1
  for (int lanes = 1; lanes < kWarp; lanes *= 2) stop = fmaxf(stop, shuffle_xor(stop, lanes));
  return static_cast<int>(stop);
}

// What is added to the scores of a thread's two rows, as exponents of 2: the bias of the context scores, or nothing.
struct RowBiases {
  float value[2] = {kNothing, kNothing};
};

QACG_DEVICE RowBiases quasi_biases_of(const Problem& p, const Sequence& s, int first_row) {
  if (!p.quasi_bias.data) return {{0.0f, 0.0f}};  // one branch for both rows
  return {{quasi_bias_of(p, s, first_row + row_of(0)), quasi_bias_of(p, s, first_row + row_of(2))}};
}

// Stores the biases of kRows rows from first_row in shared memory, where they take no registers of the loop over keys.
// A barrier must follow.
template <int kRows>
QACG_DEVICE void store_quasi_biases(const Problem& p, const Sequence& s, int first_row, float* biases) {
  if (thread_index() < kRows) biases[thread_index()] = quasi_bias_of(p, s, first_row + thread_index());
}

QACG_DEVICE RowBiases stored_biases(const float* biases, int strip_row) {
  const int row = opaque(strip_row);
  return {{biases[row + row_of(0)], biases[row + row_of(2)]}};
}

// Calls visit(t, e, hidden, mask) for the entries of query rows from first_row and keys from first_key. `mask` is what
// the mask adds to a score, as an exponent of 2. `key_mask` has the values of load_key_mask.
template <int kTiles, typename Visit>
QACG_DEVICE void visit_entries(const Problem& p, const Sequence& s, int first_row, int first_key, const float* key_mask,
                               const Visit& visit) {
  if (sees_all<8 * kTiles>(p, s, first_row, first_key, key_mask)) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) visit(t, e, false, kNothing);
    }
    return;
  }
  if (p.is_key_mask) {
    const int row = opaque(first_row), column = 2 * opaque(lane() % 4), first_column = first_key + column;
    const int seen[2] = {seen_by(p, s, row + row_of(0)) - first_column, seen_by(p, s, row + row_of(2)) - first_column};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      // `opaque`, because the compiler would otherwise read the mask after each test, four times as often.
      const float mask[2] = {opaque(key_mask[column + 8 * t]), opaque(key_mask[column + 8 * t + 1])};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        visit(t, e, 8 * t + e % 2 >= seen[e / 2] || mask[e % 2] == -INFINITY, mask[e % 2]);
      }
    }
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = opaque(first_row) + row_of(2 * half), seen = seen_by(p, s, i);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        const int j = first_key + column_of(t, e);
        const float mask = j >= seen ? -INFINITY : mask_at(p, s, i, j);
        visit(t, e, mask == -INFINITY, mask);
      }
    }
  }
}

// A score as an exponent of 2, -inf where hidden.
QACG_DEVICE float masked_score(float product, float factor, bool hidden, float mask, float bias) {
  return hidden ? -INFINITY : product * factor + (mask + bias);
}

// Turns the products of one map, Q K^T or Qc Kc^T, into scores as exponents of 2, -inf where hidden.
template <int kTiles>
QACG_DEVICE void make_scores(const Problem& p, const Sequence& s, int first_row, int first_key, const float* key_mask,
                             float (&c)[kTiles][4], const RowBiases& biases = {}) {
  const float factor = p.scale * kLog2e;
  visit_entries<kTiles>(p, s, first_row, first_key, key_mask, [&](int t, int e, bool hidden, float mask) {
    c[t][e] = masked_score(c[t][e], factor, hidden, mask, biases.value[e / 2]);
  });
}

// Which of a thread's entries dropout keeps, for the 128 keys of one counter block: byte 2 (t % 2) + e % 2 of row[e /
// 2] belongs to fragment t's element e, whose bit is the key's slot.
struct KeepBits {
  uint32_t row[2];

  QACG_DEVICE bool keeps(int first_key, int t, int e) const {
    const int slot = (first_key / kDropoutGroups + t / 2) % kDropoutSlots;
    return row[e / 2] >> (8 * (2 * (t % 2) + e % 2) + slot) & 1;
  }
};

// Every thread draws its own bits: a strip and 128 keys have 256 counters, eight for each lane.
QACG_DEVICE KeepBits draw_keep_bits(const Problem& p, const Sequence& s, int first_row, int first_key) {
  const uint64_t seed = static_cast<uint64_t>(*p.seed);
  KeepBits bits{};
#pragma unroll
  for (int e = 0; e < 4; ++e) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const int key = first_key / kDropoutBlock * kDropoutBlock + column_of(t, e);
      const uint32_t kept = kept_keys(seed, p.drop_threshold, sequence_head(p, s),
                                      static_cast<uint32_t>(first_row + row_of(e)), counter_group(key));
      bits.row[e / 2] |= kept << (8 * (2 * t + e % 2));
    }
  }
  return bits;
}

template <int kTiles>
QACG_DEVICE void apply_dropout(const KeepBits& bits, int first_key, float (&c)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (!bits.keeps(first_key, t, e)) c[t][e] = 0.0f;
    }
  }
}

// The dot product of two rows over every other 16-byte chunk: chunks part, part + 2, ...
template <typename Scalar>
QACG_DEVICE float half_dot(const Scalar* x, const Scalar* y, int head_dim, int part) {
  float sum = 0.0f;
  for (int d = part * kChunk; d < head_dim; d += 2 * kChunk) {
    const Bytes16 a = *reinterpret_cast<const Bytes16*>(x + d), b = *reinterpret_cast<const Bytes16*>(y + d);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      sum += widen(Scalar{static_cast<uint16_t>(a.word[n])}) * widen(Scalar{static_cast<uint16_t>(b.word[n])});
      sum +=
          widen(Scalar{static_cast<uint16_t>(a.word[n] >> 16)}) * widen(Scalar{static_cast<uint16_t>(b.word[n] >> 16)});
    }
  }
  return sum;
}

// The dot product of a row and a gate vector in float32 over every other 16-byte chunk of the row.
template <typename Scalar>
QACG_DEVICE float half_dot(const Scalar* x, const float* vector, int head_dim, int part) {
  float sum = 0.0f;
  for (int d = part * kChunk; d < head_dim; d += 2 * kChunk) {
    const Bytes16 a = *reinterpret_cast<const Bytes16*>(x + d);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      sum += widen(Scalar{static_cast<uint16_t>(a.word[n])}) * vector[d + 2 * n];
      sum += widen(Scalar{static_cast<uint16_t>(a.word[n] >> 16)}) * vector[d + 2 * n + 1];
    }
  }
  return sum;
}

template <typename Scalar>
QACG_DEVICE const Scalar* row_at(const Tensor4& t, const Sequence& s, int i) {
  return static_cast<const Scalar*>(t.data) + offset_of(t, s, i);
}

// Stores lambda of kRows rows from first_row in shared memory, and the gates that it computes in the tensors that the
// backward reads. Two threads per row. `vectors` is a buffer of 4 kDim floats for the gate vectors. Ends with a
// barrier.
template <typename Scalar, int kDim, int kRows>
QACG_DEVICE void compute_lambdas(const Problem& p, const Sequence& s, int first_row, float* vectors, float* lambdas) {
  const int i = first_row + thread_index() / 2, part = thread_index() % 2;
  const bool inside = i < s.queries;
  float lambda = 0.0f;
  if (!has_gate_vectors(p)) {
    if (inside) lambda = lambda_of_row(p, s, i);
  } else {
    for (int n = thread_index(); n < 4 * p.head_dim; n += 2 * kRows) {
      vectors[n / p.head_dim * kDim + n % p.head_dim] = gate_vector(p, s, n / p.head_dim, n % p.head_dim);
    }
    synchronise_block();
    float logits[2] = {};
#pragma unroll
    for (int side = kQuerySide; side <= kKeySide; ++side) {
      if (inside && !(side == kKeySide && p.column_gate)) {
        const Scalar* x = row_at<Scalar>(side == kQuerySide ? p.query : p.key, s, i);
        const Scalar* c = row_at<Scalar>(side == kQuerySide ? p.context_query : p.context_key, s, i);
        logits[side] = half_dot(x, vectors + 2 * side * kDim, p.head_dim, part) +
                       half_dot(c, vectors + (2 * side + 1) * kDim, p.head_dim, part);
      }
      logits[side] += shuffle_xor(logits[side], 1);
    }
    const float lq = sigmoid<Accurate>((logits[0] + gate_bias(p, s, kQuerySide)) * kLog2e);
    const float lk = sigmoid<Accurate>((logits[1] + gate_bias(p, s, kKeySide)) * kLog2e);
    lambda = 1.0f - (p.column_gate ? p.beta * lq : p.beta * lq + p.gamma * lk);
    if (inside && part == 0) {
      at(p.query_gate, s, i) = lq;
      if (!p.column_gate) at(p.key_gate, s, i) = lk;
    }
  }
  if (part == 0) lambdas[thread_index() / 2] = lambda;
  synchronise_block();
}

// Stores gamma lk of kCount keys from first_key in shared memory for a column gate; zeros for other gates.
template <int kCount>
QACG_DEVICE void load_key_gate_parts(const Problem& p, const Sequence& s, int first_key, float* parts) {
  static_assert(kCount <= kWarp * 4);
  if (thread_index() < kCount) parts[thread_index()] = key_gate_part(p, s, first_key + thread_index());
}

// Writes a strip of sums to rows of an output. The tile's rows that belong to this warp are the buffer.
template <typename Scalar, int kTiles, int kDim>
QACG_DEVICE void write_strip(const Problem& p, const Sequence& s, const Tile<kDim>& tile, int tile_row,
                             const float (&sums)[kTiles][4], const Tensor4& to, int first_row) {
  synchronise_warp();
  store_strip<Scalar>(tile, tile_row, 0, sums);
  synchronise_warp();
  const int left = s.queries - first_row;
  write_rows<Scalar, kWarp>(p, s, tile, tile_row, left < kStrip ? left : kStrip, to, first_row, lane());
}

// Turns the scores of one of a thread's two rows into exponentials. row.sum includes this thread's keys alone. Returns
// the factor for all sums over earlier tiles.
template <int kTiles>
QACG_DEVICE float add_scores(OnlineSoftmax& row, float (&scores)[kTiles][4], int half) {
  float top = -INFINITY;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) top = fmaxf(top, fmaxf(scores[t][2 * half], scores[t][2 * half + 1]));
  const float rescale = row.raise_maximum<Fast>(quad_max(top)), shift = row.shift();
  float sum = 0.0f;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 2 * half; e < 2 * half + 2; ++e) sum += scores[t][e] = Fast::exp2(scores[t][e] - shift);
  }
  row.sum += sum;
  return rescale;
}

// Completes the sum of one of a thread's two rows, over its four threads, and stores the row's maximum and sum.
QACG_DEVICE void store_row(const Problem& p, const Sequence& s, int first_row, OnlineSoftmax& row, int half) {
  const int i = first_row + row_of(2 * half);
  row.sum = quad_sum(row.sum);
  if (i < s.queries && lane() % 4 == 0) row.store(p, s, i);
}

// sigmoid(x log 2) to 2^-14 of its value. With u = 2^-|x| the value is 1 / (1 + u) or u / (1 + u). A polynomial
// replaces the reciprocal, for kernels that are bound by special functions. Its constant term is 1, so that both tails
// are as exact as u. qacg_kernels/backends/triton/tiles.py has the same polynomial.
QACG_DEVICE float sigmoid_by_polynomial(float x) {
  const float u = Fast::exp2(-fabsf(x));
  float inverse = -0.10911264f * u + 0.43077698f;
  inverse = inverse * u - 0.78354047f;
  inverse = inverse * u + 0.95915478f;
  inverse = inverse * u - 0.99730818f;
  inverse = inverse * u + 1.0f;
  return x < 0.0f ? u * inverse : inverse;
}

// Writes the outputs of a strip from its sums: P V up to the factor of each row, and G V, weighted by a column gate if
// there is one. The outputs go through the strip's rows of `tile`.
template <typename Scalar, int kTiles, int kDim>
QACG_DEVICE void finish_strip(const Problem& p, const Sequence& s, int first_row, OnlineSoftmax (&rows)[2],
                              const float* lambdas, float (&softmax_sum)[kTiles][4], float (&quasi_sum)[kTiles][4],
                              const Tile<kDim>& tile, int strip_row) {
  const float keep_scale = p.seed ? p.keep_scale : 1.0f;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    store_row(p, s, first_row, rows[half], half);
    const float normalise = rows[half].normalise() * keep_scale, factor = p.quasi_scale * keep_scale;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        softmax_sum[t][e] *= normalise;
        quasi_sum[t][e] *= factor;
      }
    }
  }
  if (first_row >= s.queries) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float lambda = p.column_gate ? 1.0f : lambdas[strip_row + row_of(2 * half)];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) quasi_sum[t][e] = softmax_sum[t][e] + lambda * quasi_sum[t][e];
    }
  }
  write_strip<Scalar>(p, s, tile, strip_row, quasi_sum, p.out, first_row);
  if (p.softmax_out.data) write_strip<Scalar>(p, s, tile, strip_row, softmax_sum, p.softmax_out, first_row);
}

}  // namespace qacg::cuda::mma

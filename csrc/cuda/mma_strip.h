// A strip of 16 queries and a tile of keys: masked scores, dropout, gates, the online softmax and the outputs.
#pragma once

#include "gates.h"
#include "mma_tile.h"

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

// load_key_terms() stores this value for a group of 32 keys if the key mask changes none of their scores. Added to a
// score, it is too small to change it.
constexpr float kUnchangedGroup = 0x1p-126f;

// Stores in shared memory what a key mask adds to the scores of kCount keys, and gamma lk of these keys, 0 without a
// column gate. If each thread read the mask for each of its scores, every read would wait for the one before. Called by
// all threads of a block.
template <int kCount>
QACG_DEVICE void load_key_terms(const Problem& p, const Sequence& s, int first_key, float* key_mask,
                                float* gate_parts) {
  static_assert(kCount <= 4 * kWarp);  // the threads of a block
  const bool inside = thread_index() < kCount;
  const int j = first_key + thread_index();
  if (inside) gate_parts[thread_index()] = key_gate_part(p, s, j);
  if (!p.is_key_mask) return;
  const float mask = inside && j < s.keys ? mask_at(p, s, 0, j) : 0.0f;
  const bool unchanged = all_of_warp(mask == 0.0f);
  if (inside) key_mask[thread_index()] = unchanged ? kUnchangedGroup : mask;
}

// Whether a strip of queries sees all of kCount keys and no mask adds to its scores. `key_mask` has the values of
// load_key_terms.
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

// Returns `last`, or with a key mask a smaller number if the mask hides all keys from there on: `first` if it hides
// all. Called by a whole warp.
QACG_DEVICE int visible_stop(const Problem& p, const Sequence& s, int first, int last) {
  if (!p.is_key_mask) return last;
#pragma unroll 1
  for (; last > first; last -= kWarp) {
    const int j = last - 1 - lane();
    if (!all_of_warp(j < first || mask_at(p, s, 0, j) == -INFINITY)) return last;
  }
  return first;
}

// What is added to the scores of a thread's two rows, as exponents of 2: the bias of the context scores, or nothing.
struct RowBiases {
  float value[2] = {kNothing, kNothing};
};

// Loops over keys call this for every tile, because the biases' registers would slow down calls without a bias.
QACG_DEVICE RowBiases quasi_biases_of(const Problem& p, const Sequence& s, int first_row) {
  if (!p.quasi_bias.data) return {{0.0f, 0.0f}};  // one branch for both rows
  return {{quasi_bias_of(p, s, first_row + row_of(0)), quasi_bias_of(p, s, first_row + row_of(2))}};
}

// Calls visit(t, e, hidden, mask) for the entries of query rows from first_row and keys from first_key. `mask` is what
// the mask adds to a score, as an exponent of 2. `key_mask` has the values of load_key_terms.
template <int kTiles, typename Visit>
QACG_DEVICE void visit_entries(const Problem& p, const Sequence& s, int first_row, int first_key, const float* key_mask,
                               const Visit& visit) {
  if (sees_all<8 * kTiles>(p, s, first_row, first_key, key_mask)) {
    for_entries<kTiles>([&](int t, int e) { visit(t, e, false, kNothing); });
    return;
  }
  const int row = opaque(first_row);
  const int seen[2] = {seen_by(p, s, row + row_of(0)), seen_by(p, s, row + row_of(2))};
  if (p.is_key_mask) {
    const int column = 2 * opaque(lane() % 4), first_column = first_key + column;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      // `opaque`, because the compiler would otherwise read the mask after each test, four times as often.
      const float mask[2] = {opaque(key_mask[column + 8 * t]), opaque(key_mask[column + 8 * t + 1])};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        visit(t, e, first_column + 8 * t + e % 2 >= seen[e / 2] || mask[e % 2] == -INFINITY, mask[e % 2]);
      }
    }
    return;
  }
  for_entries<kTiles>([&](int t, int e) {
    const int j = first_key + column_of(t, e);
    const float mask = j >= seen[e / 2] ? -INFINITY : mask_at(p, s, row + row_of(e), j);
    visit(t, e, mask == -INFINITY, mask);
  });
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
  for_entries<2>([&](int t, int e) {
    const int key = first_key / kDropoutBlock * kDropoutBlock + column_of(t, e);
    const uint32_t kept = kept_keys(seed, p.drop_threshold, sequence_head(p, s),
                                    static_cast<uint32_t>(first_row + row_of(e)), counter_group(key));
    bits.row[e / 2] |= kept << (8 * (2 * t + e % 2));
  });
  return bits;
}

template <int kTiles>
QACG_DEVICE void apply_dropout(const KeepBits& bits, int first_key, float (&c)[kTiles][4]) {
  for_entries<kTiles>([&](int t, int e) {
    if (!bits.keeps(first_key, t, e)) c[t][e] = 0.0f;
  });
}

// The elements that one thread reads at a time.
template <typename T>
struct alignas(16) Chunk {
  T value[kChunk];
};

// One of kParts summands of the dot product of a row with another row, or with a gate vector in float32.
template <int kParts, typename Scalar, typename Other>
QACG_DEVICE float partial_dot(const Scalar* x, const Other* y, int head_dim, int part) {
  float sum = 0.0f;
  for (int d = part * kChunk; d < head_dim; d += kParts * kChunk) {
    const auto a = *reinterpret_cast<const Chunk<Scalar>*>(x + d);
    const auto b = *reinterpret_cast<const Chunk<Other>*>(y + d);
#pragma unroll
    for (int n = 0; n < kChunk; ++n) sum += widen(a.value[n]) * widen(b.value[n]);
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
        logits[side] = partial_dot<2>(x, vectors + 2 * side * kDim, p.head_dim, part) +
                       partial_dot<2>(c, vectors + (2 * side + 1) * kDim, p.head_dim, part);
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

// Two buffers of kKeys keys, context keys and values each, and what a column gate and a key mask say about these keys.
template <typename Scalar, int kDim, int kKeys, int kThreads>
struct KeyTiles {
  Tile<kDim> key, context_key, value;
  float *gate_parts, *mask;

  static constexpr int64_t kShared = 2 * 3 * kKeys * kDim * 2 + 2 * arena_bytes(2 * kKeys * 4);

  QACG_DEVICE explicit KeyTiles(Arena& arena)
      : key(arena.tile<kDim>(2 * kKeys)),
        context_key(arena.tile<kDim>(2 * kKeys)),
        value(arena.tile<kDim>(2 * kKeys)),
        gate_parts(arena.array<float>(2 * kKeys)),
        mask(arena.array<float>(2 * kKeys)) {}

  // Starts to load tile n of `keys` keys into a buffer.
  QACG_DEVICE void load(const Problem& p, const Sequence& s, int n, int keys, int buffer, bool with_context = true) {
    const int first_key = n * kKeys, count = keys - first_key, to = buffer * kKeys;
    load_rows<Scalar, kKeys, kThreads>(p, s, p.key, first_key, count, key.from(to));
    if (with_context) load_rows<Scalar, kKeys, kThreads>(p, s, p.context_key, first_key, count, context_key.from(to));
    load_rows<Scalar, kKeys, kThreads>(p, s, p.value, first_key, count, value.from(to));
    load_key_terms<kKeys>(p, s, first_key, mask + to, gate_parts + to);
  }
};

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

// The softmax of one row of scores over the keys read so far, equations 3 and 8. Scores are exponents of 2.
struct OnlineSoftmax {
  float maximum = -INFINITY, sum = 0.0f;  // the sum includes this thread's keys alone

  // The number that is subtracted from scores. While no key is visible, all scores are -inf, and a shift of 0 avoids
  // NaN.
  QACG_DEVICE float shift() const { return maximum == -INFINITY ? 0.0f : maximum; }

  // Turns a tile's scores of this row, half `half` of each fragment, into exponentials. Returns the factor for all sums
  // over earlier tiles.
  template <int kTiles>
  QACG_DEVICE float add_scores(float (&scores)[kTiles][4], int half) {
    const float before = maximum;
    float top = -INFINITY;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) top = fmaxf(top, fmaxf(scores[t][2 * half], scores[t][2 * half + 1]));
    maximum = fmaxf(before, quad_max(top));
    const float rescale = Fast::exp2(before - shift());
    float tile_sum = 0.0f;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) tile_sum += scores[t][e] = Fast::exp2(scores[t][e] - shift());
    }
    sum = sum * rescale + tile_sum;
    return rescale;
  }

  // Completes the sum, over the row's four threads, and stores what the backward reads of row i: zeros for a row
  // without visible keys. Returns the factor that turns exponentials into P.
  QACG_DEVICE float finish(const Problem& p, const Sequence& s, int i) {
    sum = quad_sum(sum);
    if (i < s.queries && lane() % 4 == 0) {
      at(p.row_max, s, i) = shift();
      at(p.row_sum, s, i) = sum;
    }
    return softmax_row(maximum, sum).normalise;
  }
};

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
  const float keep_scale = p.seed ? p.keep_scale : 1.0f, factor = p.quasi_scale * keep_scale;
  const float normalise[2] = {rows[0].finish(p, s, first_row + row_of(0)) * keep_scale,
                              rows[1].finish(p, s, first_row + row_of(2)) * keep_scale};
  const float lambda[2] = {p.column_gate ? 1.0f : lambdas[strip_row + row_of(0)],
                           p.column_gate ? 1.0f : lambdas[strip_row + row_of(2)]};
  if (first_row >= s.queries) return;
  for_entries<kTiles>([&](int t, int e) {
    softmax_sum[t][e] *= normalise[e / 2];
    quasi_sum[t][e] = softmax_sum[t][e] + lambda[e / 2] * (quasi_sum[t][e] * factor);
  });
  write_strip<Scalar>(p, s, tile, strip_row, quasi_sum, p.out, first_row);
  if (p.softmax_out.data) write_strip<Scalar>(p, s, tile, strip_row, softmax_sum, p.softmax_out, first_row);
}

}  // namespace qacg::cuda::mma

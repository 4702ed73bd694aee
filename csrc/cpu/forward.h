// The forward of one sequence and head: O = Z o (P + lambda G) V, equations 1 to 8.
//
// Keys are processed in spans. The softmax of a row that fits one span is exact at once; if O1 is not
// saved, P and lambda G are added before a single product with V (three products in all). Longer rows keep a
// running maximum and two accumulators, of which P's is rescaled (four products). To save the fourth product, a span
// has up to Engine::kWholeRowKeys keys if O1 is not saved, else kSpan.
#pragma once

#include "masking.h"
#include "prefetch.h"
#include "vec_math.h"

namespace QACG_ISA {

// In a call with a mask, the sigmoid of a context score at or below this number is exactly 0, as it should be for a
// mask value of -10000. The number is an exponent of 2 and includes the bias.
constexpr float kHiddenScore = -125.0f;
// If lambda alpha times a row's sum is above this number, its products with values could overflow.
constexpr float kLargestWeight = 0x1p64f;
constexpr int64_t kSpan = 512;  // a multiple of kChunk
// Packed keys and values of at most this many bytes stay in the second-level cache with a tile of kTileRows queries.
// Larger ones are read from memory for every tile: tiles are then larger, and keys are prefetched.
constexpr int64_t kResidentBytes = 5 << 18, kTileRows = 64;
constexpr int64_t kChunk = 128;  // a multiple of every kPanel and of the dropout block

// The distance between a tile's rows in memory, which is no multiple of 4096 bytes. If it were, the elements of a
// column would share a set of the first-level cache.
constexpr int64_t tile_stride(int64_t span) { return span % 64 == 0 ? span + 16 : span; }
constexpr int64_t kChunkStride = tile_stride(kChunk);

template <typename Engine>
class Forward {
  using Scalar = typename Engine::Scalar;
  using Packed = typename Engine::Packed;
  using Left = typename Engine::Left;

 public:
  Forward(const qacg::Problem& p, void* scratch, int64_t longest_query, int64_t longest_key)
      : p_(p),
        engine_(p),
        dim_(Engine::padded_dim(p.head_dim)),
        is_plain_(ReadsInPlace<Engine> && p.mask_kind == qacg::Mask::kNone && !p.has_dropout && !p.column_gate &&
                  p.scale > 0),
        takes_largest_(Engine::kTakesLargest && p.mask_kind == qacg::Mask::kNone && p.scale > 0) {
    Arena arena(scratch);
    const int64_t keys = round_up(longest_key, Engine::kKeyStep);
    span_ = !p.softmax_out.data && keys <= Engine::kWholeRowKeys ? keys : smaller(keys, kSpan);
    resident_ = 3 * Engine::panels_size(keys, dim_) * static_cast<int64_t>(sizeof(Packed)) <= kResidentBytes;
    tile_rows_ = resident_ ? smaller(Engine::kRowBlock, kTileRows) : Engine::kRowBlock;
    const int64_t rows = round_up(smaller(tile_rows_, longest_query), Engine::kRowStep);
    stride_ = tile_stride(span_);
    key_panels_ = arena.take<Packed>(panels_scratch<Engine>(keys, dim_));
    context_panels_ = arena.take<Packed>(panels_scratch<Engine>(keys, dim_));
    values_ = arena.take<Packed>(rows_scratch<Engine>(keys, dim_));
    query_ = arena.take<Packed>(Engine::pack_left_size(rows, dim_));
    context_query_ = arena.take<Packed>(Engine::pack_left_size(rows, dim_));
    softmax_ = arena.take<float>(rows * stride_);
    quasi_ = arena.take<float>(rows * kChunkStride);
    const bool whole = !p.softmax_out.data && keys <= span_;
    left_ = arena.take<Packed>(Engine::left_size(rows, kChunk));
    softmax_left_ = arena.take<Packed>(whole ? 0 : Engine::left_size(rows, kChunk));
    // Products write a multiple of kRowStep rows.
    const int64_t sums = round_up(rows, Engine::kRowStep) * dim_;
    softmax_sum_ = arena.take<float>(sums);
    quasi_sum_ = arena.take<float>(sums);
    keep_ = arena.take<int32_t>(kChunk);
    key_gate_ = arena.take<float>(round_up(keys, kLanes));
    largest_ = arena.take<Vec>(takes_largest_ ? rows : 0);
    max_ = arena.take<float>(rows);
    sum_ = arena.take<float>(rows);
    divisor_ = arena.take<float>(rows);
    lambda_ = arena.take<float>(rows);
    bias_ = arena.take<float>(round_up(rows, kLanes));
    used_ = arena.used(scratch);
  }
  int64_t used() const { return used_; }

  // Computes a unit, and meanwhile prefetches the operands of the next one (if any).
  void run(qacg::Unit unit, const qacg::Unit* next) {
    const Sequence s = sequence_of(p_, unit.sequence, unit.head);
    pack_keys(s);
    prefetch_operands(s, unit, next);
    if (p_.column_gate && unit.first == 0) {
      const int64_t all = p_.cu_seqlens ? s.keys : p_.key_length;
      for (int64_t j = 0; j < all; ++j) at(p_.key_gate, s, j) = gate_of_row<Scalar>(p_, s, j, 1);
    }
    const bool one_key = ReadsInPlace<Engine> && is_plain_ && s.keys == 1 && !p_.softmax_out.data;
    const int64_t last = smaller(unit.last * Engine::kRowBlock, s.queries);
    for (int64_t row = unit.first * Engine::kRowBlock; row < last; row += tile_rows_) {
      const int64_t rows = smaller(tile_rows_, last - row);
      if constexpr (ReadsInPlace<Engine>) {
        if (one_key) {
          one_key_block(s, row, rows);
          continue;
        }
      }
      rows_block(s, row, rows);
    }
  }

 private:
  void prefetch_operands(const Sequence& s, qacg::Unit unit, const qacg::Unit* next) {
    if constexpr (ReadsInPlace<Engine>) return;  // its products prefetch rows themselves
    engine_.prefetch.clear();
    const auto add = [&](const qacg::Tensor4& t, const Sequence& of, int64_t first, int64_t last, bool written) {
      engine_.prefetch.add(row_of<const Scalar>(t, of, first), t.row * sizeof(Scalar), last - first, written);
    };
    const int64_t first = unit.first * Engine::kRowBlock, last = smaller(unit.last * Engine::kRowBlock, s.queries);
    add(p_.out, s, first, last, true);
    if (next) {
      const Sequence n = sequence_of(p_, next->sequence, next->head);
      for (const qacg::Tensor4* t : {&p_.key, &p_.context_key, &p_.value}) add(*t, n, 0, n.keys, false);
      for (const qacg::Tensor4* t : {&p_.query, &p_.context_query}) {
        add(*t, n, next->first * Engine::kRowBlock, smaller(next->last * Engine::kRowBlock, n.queries), false);
      }
    }
    if (s.keys == 0) return;
    const int64_t row_steps = (s.keys + span_ - 1) / span_ + (s.keys + kChunk - 1) / kChunk;
    engine_.prefetch.spread(
        p_.head_dim * sizeof(Scalar),
        (unit.last - unit.first) * Engine::steps(s.keys, dim_, 2, 1, 0) + (last - first) * row_steps);
  }

  void pack_keys(const Sequence& s) {
    if (s.keys == 0) return;
    keys_ = panels_of<Engine>(row_of<const Scalar>(p_.key, s, 0), p_.key.row, s.keys, p_.head_dim, key_panels_);
    context_keys_ = panels_of<Engine>(row_of<const Scalar>(p_.context_key, s, 0), p_.context_key.row, s.keys,
                                      p_.head_dim, context_panels_);
    summed_values_ =
        summed_rows<Engine>(row_of<const Scalar>(p_.value, s, 0), p_.value.row, s.keys, p_.head_dim, values_);
    if (p_.column_gate) {
      for (int64_t j = 0; j < round_up(s.keys, kLanes); ++j) key_gate_[j] = gate_of_row<Scalar>(p_, s, j, 1);
    }
  }

  // Computes lambda_i of some rows, for a column gate only the part 1 - beta lq_i, and the biases of their sigmoids.
  void row_gates(const Sequence& s, int64_t first, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t i = first + r;
      bias_[r] = quasi_bias_of_row(p_, s, i);
      if (p_.lambda.data) {
        lambda_[r] = at(p_.lambda, s, i);
        continue;
      }
      const float lq = gate_of_row<Scalar>(p_, s, i, 0);
      at(p_.query_gate, s, i) = lq;
      lambda_[r] = 1.0f - p_.beta * lq;
      if (!p_.column_gate) {
        const float lk = gate_of_row<Scalar>(p_, s, i, 1);
        at(p_.key_gate, s, i) = lk;
        lambda_[r] = 1.0f - (p_.beta * lq + p_.gamma * lk);
      }
    }
  }

  void rows_block(const Sequence& s, int64_t first, int64_t rows) {
    row_gates(s, first, rows);
    const auto query =
        Engine::pack_left(row_of<const Scalar>(p_.query, s, first), p_.query.row, rows, p_.head_dim, query_);
    const auto context_query = Engine::pack_left(row_of<const Scalar>(p_.context_query, s, first), p_.context_query.row,
                                                 rows, p_.head_dim, context_query_);
    const int64_t keys = seen_keys(p_, s, first + rows - 1);  // the last row sees the most
    const bool one_sum = keys <= span_ && !p_.softmax_out.data;
    for (int64_t r = 0; r < rows; ++r) {
      max_[r] = -kInfinity;
      sum_[r] = divisor_[r] = 0;
    }

    for (int64_t key = 0; key < keys; key += span_) {
      const int64_t count = smaller(span_, keys - key);
      softmax_scores(rows, key, count, query);
      if (one_sum && count <= kLanes && is_plain_) {
        engine_.scores(rows, round_up(count, Engine::kKeyStep), dim_, context_query, context_keys_, 0, quasi_,
                       kChunkStride);
        for (int64_t r = 0; r < rows; ++r) short_row(s, first + r, r), engine_.prefetch.step();
        accumulate(s, rows, 0, 0, count, true);
        break;
      }
      for (int64_t r = 0; r < rows; ++r) {
        softmax_row(s, first + r, r, key, count);
        if (one_sum) bound_weights(r, count);
        engine_.prefetch.step();
      }
      // Context scores are computed in chunks that stay in the first-level cache between products.
      for (int64_t chunk = key; chunk < key + count; chunk += kChunk) {
        const int64_t part = smaller(kChunk, key + count - chunk), cols = round_up(part, Engine::kKeyStep);
        engine_.scores(rows, cols, dim_, context_query, context_keys_, chunk, quasi_, kChunkStride);
        fetch_packed(values_ahead_, summed_values_, chunk, rows);
        if (chunk + kChunk < key + count) {
          fetch_packed(engine_.keys_ahead, context_keys_, chunk + kChunk, rows);
        } else {
          fetch_packed(engine_.keys_ahead, keys_, key + count < keys ? key + count : 0, rows);
        }
        for (int64_t r = 0; r < rows; ++r) {
          quasi_row(s, first + r, r, key, chunk, part, one_sum);
          engine_.prefetch.step(), engine_.keys_ahead.step(), values_ahead_.step();
        }
        accumulate(s, rows, key, chunk, part, one_sum);
      }
    }
    if (keys <= 0) clear(rows);
    write(s, first, rows, one_sum);
  }

  // Rows that see one key: P is 1 and O = (1 + lambda G) V. Their scores are computed a register of queries at a time.
  void one_key_block(const Sequence& s, int64_t first, int64_t rows) {
    const auto row = [&](const qacg::Tensor4& t, Packed* to) {
      return Engine::pack_left(row_of<const Scalar>(t, s, 0), t.row, 1, p_.head_dim, to);
    };
    const Left key = row(p_.key, query_), context_key = row(p_.context_key, context_query_),
               value = row(p_.value, softmax_sum_);
    const Right<Engine> queries{row_of<const Scalar>(p_.query, s, 0), p_.query.row, s.queries};
    const Right<Engine> context_queries{row_of<const Scalar>(p_.context_query, s, 0), p_.context_query.row, s.queries};
    const int64_t cols = round_up(rows, kLanes);
    // If heads are adjacent in memory, this prefetches the rows of the next heads.
    for (const qacg::Tensor4* t : {&p_.key, &p_.context_key, &p_.value}) {
      engine_.fetch_ahead(row_of<const Scalar>(*t, s, 0), t->row, p_.head_dim);
    }
    engine_.scores(1, cols, dim_, key, queries, first, softmax_, 0);
    engine_.scores(1, cols, dim_, context_key, context_queries, first, quasi_, 0);
    row_gates(s, first, rows);
    const float factor = p_.scale * kLog2e;
    for (int64_t r = 0; r < rows; r += kLanes) {
      const Vec scores = load(softmax_ + r);
      const Vec row_max = scores * factor;
      const IntVec infinite = (IntVec)(row_max == splat(-kInfinity));
      // The softmax of a score of -inf is NaN.
      const Vec e =
          infinite ? splat(__builtin_nanf("")) : exp2<Scalar>(multiply_subtract(scores, splat(factor), row_max));
      const Vec sigmoid = biased_sigmoid<Scalar>(load(quasi_ + r), splat(factor), load(bias_ + r));
      alignas(64) float max[kLanes], sum[kLanes], part[kLanes], softmax[kLanes];
      store(max, row_max), store(sum, e), store(part, p_.quasi_scale * sigmoid), store(softmax, e / e);
      for (int64_t i = 0; i < smaller(kLanes, rows - r); ++i) {
        at(p_.row_max, s, first + r + i) = max[i];
        at(p_.row_sum, s, first + r + i) = sum[i];
        const float weight = softmax[i] + lambda_[r + i] * part[i];
        write_row(value.data, weight, p_.head_dim, row_of<Scalar>(p_.out, s, first + r + i));
      }
    }
  }

  void softmax_scores(int64_t rows, int64_t key, int64_t count, Left query) {
    const int64_t cols = round_up(count, Engine::kKeyStep);
    // Prefetches a few columns ahead of the product.
    constexpr int64_t kAhead = 32;
    fetch_packed(engine_.keys_ahead, keys_, key + kAhead,
                 Engine::steps(kChunk, dim_, 1, 0, 0) * rows / Engine::kRowBlock, count - kAhead);
    if constexpr (Engine::kTakesLargest) {
      if (takes_largest_) {
        return engine_.scores_and_largest(rows, cols, dim_, query, keys_, key, softmax_, stride_, largest_);
      }
    }
    engine_.scores(rows, cols, dim_, query, keys_, key, softmax_, stride_);
  }

  // Lets `stream` prefetch `count` packed keys or values from `first` on, kChunk of them in `steps` calls of step().
  // Does nothing if they stay in the cache.
  void fetch_packed(Stream& stream, const Right<Engine>& packed, int64_t first, int64_t steps,
                    int64_t count = kChunk) const {
    if constexpr (!ReadsInPlace<Engine>) {
      if (resident_) return;
      const int64_t key = Engine::panels_size(kChunk, dim_) / kChunk;
      const int64_t bytes = key * static_cast<int64_t>(sizeof(Packed));
      stream.begin(packed + first * key, count * bytes, kChunk * bytes / (steps > 0 ? steps : 1));
    }
  }

  int64_t visible_in_span(const Sequence& s, int64_t i, int64_t key, int64_t count) const {
    const int64_t seen = seen_keys(p_, s, i) - key;
    return seen < 0 ? 0 : smaller(seen, count);
  }

  // The largest element of a row. Four running maxima hide the latency of one.
  static QACG_INLINE float largest_of(const float* row, int64_t count) {
    Vec top[4] = {splat(-kInfinity), splat(-kInfinity), splat(-kInfinity), splat(-kInfinity)};
    int64_t j = 0;
    for (; j + 4 * kLanes <= count; j += 4 * kLanes) {
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t) top[t] = at_least(load(row + j + t * kLanes), top[t]);
    }
    for (; j + kLanes <= count; j += kLanes) top[0] = at_least(load(row + j), top[0]);
    if (j < count) {
      const IntVec lanes = lanes_below(count - j);
      top[1] = at_least(lanes ? load(row + j) : splat(-kInfinity), top[1]);
    }
    return largest(at_least(at_least(top[0], top[1]), at_least(top[2], top[3])));
  }

  // Replaces scores by exp(score - max), updates max_ and sum_, and rescales earlier spans. max_ has the unit that
  // scale_row() gives the scores: exponents of 2, or of e with an additive mask.
  void softmax_row(const Sequence& s, int64_t i, int64_t r, int64_t key, int64_t count) {
    float* row = softmax_ + r * stride_;
    const int64_t seen = visible_in_span(s, i, key, count), cols = round_up(count, Engine::kKeyStep);
    const float factor = scale_row<Scalar>(p_, s, i, key, seen, row);
    const bool additive = p_.mask_kind == qacg::Mask::kAdditive;
    const float top = takes_largest_ && seen == cols ? largest(largest_[r]) : largest_of(row, seen);
    const float row_max = additive ? top : top * factor;
    const float new_max = row_max > max_[r] ? row_max : max_[r];
    // While no key is visible every exponent is -inf; a shift of 0 avoids NaN.
    const float shift = new_max == -kInfinity ? 0.0f : new_max;
    if (key > 0) {
      const float before = max_[r] - shift;
      const float rescale = new_max == max_[r] ? 1.0f : __builtin_exp2f(additive ? before * factor : before);
      if (rescale != 1.0f) {
        sum_[r] *= rescale;
        float* total = softmax_sum_ + r * dim_;
        for (int64_t d = 0; d < dim_; d += kLanes) store(total + d, load(total + d) * rescale);
      }
    }
    max_[r] = new_max;

    Vec total = Vec{};
    specialise(
        [&](auto subtract_first) {
          const auto exponential = [&](int64_t j, IntVec lanes) QACG_INLINE_LAMBDA {
            const Vec score = load(row + j);
            const Vec e =
                keep_where(lanes, exp2<Scalar>(subtract_first ? (score - shift) * factor
                                                              : multiply_subtract(score, splat(factor), splat(shift))));
            store(row + j, e);
            total += e;
          };
          int64_t j = 0;
          for (; j + kLanes <= seen; j += kLanes) exponential(j, kAllLanes);
          if (j < seen) {
            exponential(j, lanes_below(seen - j));
            j += kLanes;
          }
          for (; j < cols; j += kLanes) store(row + j, Vec{});
        },
        additive);
    sum_[r] += sum(total);
  }

  // Whether lambda G times the row's sum could overflow in products with values.
  QACG_INLINE bool too_large(int64_t r) const {
    const float gate = __builtin_fabsf(lambda_[r]) + (p_.column_gate ? __builtin_fabsf(p_.gamma) : 0.0f);
    return gate * __builtin_fabsf(p_.quasi_scale) * sum_[r] > kLargestWeight;
  }

  // The exponentials and lambda G times the row's sum are added, and the output is divided by the sum. If the products
  // could overflow, the exponentials are divided by the sum here, and the divisor becomes 1.
  void bound_weights(int64_t r, int64_t count) {
    divisor_[r] = sum_[r];
    if (!too_large(r)) return;
    float* row = softmax_ + r * stride_;
    const float inverse = 1.0f / sum_[r];
    for (int64_t j = 0; j < count; j += kLanes) store(row + j, load(row + j) * inverse);
    divisor_[r] = 1;
  }

  // softmax_row(), bound_weights() and quasi_row() in one, for a row of one register in a call with is_plain_.
  QACG_INLINE void short_row(const Sequence& s, int64_t i, int64_t r) {
    float* row = quasi_ + r * kChunkStride;
    const int64_t seen = seen_keys(p_, s, i);
    const IntVec lanes = lanes_below(seen);
    const float factor = p_.scale * kLog2e;
    const Vec scores = load(softmax_ + r * stride_), context_scores = load(row);
    max_[r] = largest(lanes ? scores : splat(-kInfinity)) * factor;
    const Vec shift = splat(max_[r] == -kInfinity ? 0.0f : max_[r]);
    Vec e = keep_where(lanes, exp2<Scalar>(multiply_subtract(scores, splat(factor), shift)));
    sum_[r] = divisor_[r] = sum(e);
    if (too_large(r)) e *= 1.0f / sum_[r], divisor_[r] = 1;
    const Vec sigmoid = keep_where(lanes, biased_sigmoid<Scalar>(context_scores, splat(factor), splat(bias_[r])));
    const Vec weights = e + lambda_[r] * p_.quasi_scale * divisor_[r] * sigmoid;
    Engine::put_row(row, left_, r, seen, round_up(seen, Engine::kKeyStep),
                    [&](int64_t, IntVec) QACG_INLINE_LAMBDA { return weights; });
  }

  // Replaces a chunk of context scores by their sigmoids, weighted by a column gate, and clears dropped entries. With
  // one_sum, entries become e + lambda alpha d sigmoid, with the exponentials e of the softmax and the row's divisor d.
  void quasi_row(const Sequence& s, int64_t i, int64_t r, int64_t key, int64_t chunk, int64_t count, bool one_sum) {
    float* row = quasi_ + r * kChunkStride;
    float* exponentials = softmax_ + r * stride_ + (chunk - key);
    const int64_t seen = visible_in_span(s, i, chunk, count), cols = round_up(count, Engine::kKeyStep);
    const float factor = scale_row<Scalar>(p_, s, i, chunk, seen, row);
    const bool is_masked = p_.mask_kind != qacg::Mask::kNone;
    const Vec bias = splat(bias_[r]);
    const Vec hidden = splat(is_masked ? (kHiddenScore - bias_[r]) / factor : 0.0f);
    if (p_.has_dropout) keep_row(p_, s, i, chunk, seen, keep_);
    const float weight = p_.quasi_scale * divisor_[r];
    const Vec row_gate = splat(lambda_[r]), row_weight = splat(lambda_[r] * weight);
    specialise(
        [&](auto join, auto masked, auto drop, auto column) {
          const auto kept = [&](int64_t j, Vec x)
                                QACG_INLINE_LAMBDA { return drop ? keep_where(load_mask(keep_ + j), x) : x; };
          const auto sigmoid = [&](int64_t j, IntVec lanes) QACG_INLINE_LAMBDA {
            const Vec score = load(row + j);
            if (masked) lanes &= ~(IntVec)(score <= hidden);
            Vec g = keep_where(lanes, biased_sigmoid<Scalar>(score, splat(factor), bias));
            if (join) {
              g = load(exponentials + j) +
                  (column ? (row_gate - p_.gamma * load(key_gate_ + chunk + j)) * weight : row_weight) * g;
            } else if (column) {
              g = keep_where(lanes, (row_gate - p_.gamma * load(key_gate_ + chunk + j)) * g);
            }
            return kept(j, g);
          };
          Engine::put_row(row, left_, r, seen, cols, sigmoid);
          if (join || !(Engine::kPacksTiles || drop)) return;
          Engine::put_row(exponentials, softmax_left_, r, seen, cols, [&](int64_t j, IntVec lanes) QACG_INLINE_LAMBDA {
            return keep_where(lanes, kept(j, load(exponentials + j)));
          });
        },
        one_sum, is_masked, p_.has_dropout, p_.column_gate);
  }

  void accumulate(const Sequence& s, int64_t rows, int64_t key, int64_t chunk, int64_t count, bool one_sum) {
    const int64_t cols = round_up(count, Engine::kKeyStep);
    const auto add = [&](Left a, float* total) {
      engine_.weighted_sum(rows, count, dim_, a, summed_values_, chunk, total, chunk > 0);
    };
    const Left quasi = Engine::put_rows(quasi_, kChunkStride, left_, rows, cols);
    if (one_sum) return add(quasi, softmax_sum_);
    add(Engine::put_rows(softmax_ + (chunk - key), stride_, softmax_left_, rows, cols), softmax_sum_);
    add(quasi, quasi_sum_);
  }

  void clear(int64_t rows) {
    memset(softmax_sum_, 0, rows * dim_ * sizeof(float));
    memset(quasi_sum_, 0, rows * dim_ * sizeof(float));
  }

  void write(const Sequence& s, int64_t first, int64_t rows, bool one_sum) {
    const float keep_scale = p_.has_dropout ? p_.keep_scale : 1.0f;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t i = first + r;
      // If the sum is NaN, the output must be NaN. The output of a row that sees no key is 0, but that of a row whose
      // visible scores are all -inf is NaN.
      bool empty = max_[r] == -kInfinity && sum_[r] == 0;
      if (empty && sees_a_key<Scalar>(p_, s, i, seen_keys(p_, s, i))) {
        sum_[r] = divisor_[r] = __builtin_nanf("");
        empty = false;
      }
      const float normalise = empty ? 0.0f : keep_scale / (one_sum ? divisor_[r] : sum_[r]);
      at(p_.row_max, s, i) = max_[r];
      at(p_.row_sum, s, i) = sum_[r];
      float* softmax_out = softmax_sum_ + r * dim_;
      Scalar* out = row_of<Scalar>(p_.out, s, i);
      if (one_sum) {
        write_row(softmax_out, normalise, p_.head_dim, out);
        continue;
      }
      const float alpha = p_.quasi_scale * keep_scale;
      if (p_.softmax_out.data) {
        write_row(softmax_out, normalise, p_.head_dim, row_of<Scalar>(p_.softmax_out, s, i));
      }
      const float* quasi_out = quasi_sum_ + r * dim_;
      const float weight = p_.column_gate ? alpha : alpha * lambda_[r];
      for (int64_t d = 0; d < dim_; d += kLanes) {
        store(softmax_out + d, normalise * load(softmax_out + d) + weight * load(quasi_out + d));
      }
      write_row(softmax_out, 1.0f, p_.head_dim, out);
    }
  }

  FlushDenormals flush_denormals_;
  const qacg::Problem& p_;
  Engine engine_;
  Stream values_ahead_;
  const int64_t dim_;
  int64_t span_, tile_rows_, stride_, used_;
  bool resident_;
  Right<Engine> keys_{}, context_keys_{}, summed_values_{};  // packed, or the caller's rows
  Packed *key_panels_, *context_panels_, *values_, *query_, *context_query_, *left_, *softmax_left_;
  float *softmax_, *quasi_, *softmax_sum_, *quasi_sum_, *key_gate_;
  float *max_, *sum_, *divisor_, *lambda_, *bias_;  // of each row
  int32_t* keep_;
  const bool is_plain_;
  // Whether products also return the largest score of each row. A mask or a negative scale could make another score the
  // largest.
  const bool takes_largest_;
  Vec* largest_;
};

}  // namespace QACG_ISA

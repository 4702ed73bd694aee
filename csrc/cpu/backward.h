// The backward of one sequence and head, equations 9 to 14. Scores are computed again, in tiles of one row block and
// one span of keys, with eight products per tile.
//
// run() computes the gradients of queries and keys together. run_rows() and run_keys() compute them separately (five
// and six products), so that several threads can work on one head. Every sum has the same order, so results are bitwise
// equal.
#pragma once

#include "forward.h"

namespace QACG_ISA {

constexpr int64_t kLargestHead = 256;
constexpr int64_t kSumBlock = 32;  // rows of a partial sum in gate_sums
constexpr int64_t kKeyBlock = 128;  // of run_keys; a multiple of the dropout block, divides kSpan

template <typename Engine>
class Backward {
  using Scalar = typename Engine::Scalar;
  using Packed = typename Engine::Packed;
  using Left = typename Engine::Left;
  struct Block {
    Left query, context_query, grad;
    int64_t first, rows;
  };

 public:
  Backward(const qacg::Problem& p, const qacg::Gradients& g, void* scratch, int64_t longest_query, int64_t longest_key)
      : p_(p), g_(g), engine_(p), dim_(Engine::padded_dim(p.head_dim)) {
    Arena arena(scratch);
    const int64_t keys = round_up(longest_key, Engine::kKeyStep);
    // Rows of up to kSpan keys are one span, so delta is computed in the same sweep. Longer rows have spans of half
    // that length: their tiles take less memory, so blocks of rows can be larger. Each block of rows reads the packed
    // keys, and reads and writes the sums over queries, so fewer blocks save memory traffic.
    const bool whole = keys <= kSpan;
    span_ = smaller(keys, whole ? kSpan : kSpan / 2);
    // With few queries, shorter spans keep their operands and gradients in the second-level cache.
    if (ReadsInPlace<Engine> && p.softmax_out.data) span_ = smaller(keys, kKeyBlock);
    if constexpr (ReadsInPlace<Engine>) few_queries_ = longest_query <= Engine::kFewQueries;
    const int64_t summed = few_queries_ ? 0 : keys;
    row_block_ = span_ <= kSpan / 2 ? 2 * kTileRows : kTileRows;
    const int64_t rows = round_up(smaller(row_block_, longest_query), Engine::kRowStep);
    stride_ = tile_stride(span_);
    for (auto panels : {&key_panels_, &context_panels_, &value_panels_}) {
      *panels = arena.take<Packed>(panels_scratch<Engine>(keys, dim_));
    }
    for (auto packed : {&keys_, &context_keys_}) *packed = arena.take<Packed>(rows_scratch<Engine>(keys, dim_));
    for (auto left : {&query_left_, &context_left_, &grad_left_}) {
      *left = arena.take<Packed>(Engine::pack_left_size(rows, dim_));
    }
    for (auto packed : {&query_, &context_query_, &grad_}) {
      *packed = arena.take<Packed>(Engine::rows_size(round_up(rows, Engine::kKeyStep), dim_));
    }
    for (auto tile : {&softmax_, &quasi_, &grad_attention_}) *tile = arena.take<float>(rows * stride_);
    left_ = arena.take<Packed>(Engine::left_size(round_up(rows, Engine::kKeyStep), span_));
    for (auto total : {&query_sum_, &context_query_sum_}) *total = arena.take<float>(rows * dim_);
    for (auto total : {&key_sum_, &context_key_sum_, &value_sum_}) {
      *total = arena.take<float>(Engine::key_sums_size(summed, dim_));
    }
    for (auto total : {&key_rows_, &context_key_rows_, &value_rows_}) *total = arena.take<float>(kLanes * dim_);
    keep_ = arena.take<int32_t>(round_up(span_, qacg::kDropoutBlock));
    for (auto vector : {&key_gate_, &key_gate_sum_}) *vector = arena.take<float>(round_up(keys, kLanes));
    for (auto vector : {&lambda_, &bias_, &delta_, &lambda_sum_}) *vector = arena.take<float>(rows);
    used_ = arena.used(scratch);
  }
  ~Backward() {
    if (g_.streams) end_streams();
  }
  Backward(const Backward&) = delete;
  int64_t used() const { return used_; }

  // Computes a unit, and meanwhile prefetches the operands of the next one (if any).
  void run(qacg::Unit unit, const qacg::Unit* next) {
    const Sequence s = sequence_of(p_, unit.sequence, unit.head);
    if constexpr (ReadsInPlace<Engine>) {
      if (few_queries_) return run_few_queries(s);
    }
    prefetch_operands(s, next);
    begin_keys(s, 0, s.keys);
    pack_key_rows(s);
    for (int64_t first = 0; first < s.queries; first += row_block_) {
      rows_block(s, first, smaller(row_block_, s.queries - first), true);
    }
    end_keys(s, 0, s.keys);
    end_hidden_keys(s);
  }

  // All queries are one block: the gradients of a span of keys are written before the next span is read.
  void run_few_queries(const Sequence& s) {
    begin_panels(s, 0, s.keys);
    pack_key_rows(s);
    const Block b = begin_rows(s, 0, s.queries);
    pack_query_rows(s, b);
    const int64_t keys = s.queries > 0 ? seen_keys(p_, s, s.queries - 1) : 0;
    const bool delta_in_tile = !p_.softmax_out.data && keys <= span_;
    if (!delta_in_tile) find_delta(s, b, keys);
    for (int64_t key = 0; key < s.keys; key += span_) {
      const int64_t count = smaller(span_, s.keys - key), seen = smaller(count, keys - key);
      few_queries_tiles(s, b, key, count, seen, delta_in_tile);
      if (seen > 0) add_to_queries(b, key, seen, round_up(seen, Engine::kKeyStep));
      // With a row gate, write_keys() reads results of end_rows(). There are then as many keys as queries, so one span.
      if (key + count == s.keys) end_rows(s, b, keys);
      write_keys(s, b, key, count, seen);
    }
    if (s.keys == 0) end_rows(s, b, keys);
    end_hidden_keys(s);
  }

  // Computes the three tiles of keys [key, key + count), of which the rows see the first `seen`.
  void few_queries_tiles(const Sequence& s, const Block& b, int64_t key, int64_t count, int64_t seen,
                         bool delta_in_tile) {
    begin_key_gates(s, key, count);
    if (seen <= 0) return;
    const int64_t cols = round_up(seen, Engine::kKeyStep);
    scores(b, key, cols);
    for (int64_t r = 0; r < b.rows; ++r) gradient_row(s, b, r, key, 0, seen, cols, delta_in_tile, true);
  }

  void run_rows(qacg::Unit unit) {
    const Sequence s = sequence_of(p_, unit.sequence, unit.head);
    if (s.keys > 0) {
      begin_panels(s, 0, s.keys);
      begin_key_gates(s, 0, s.keys);
    }
    pack_key_rows(s);
    const int64_t last = smaller(unit.last * Engine::kRowBlock, s.queries);
    for (int64_t first = unit.first * Engine::kRowBlock; first < last; first += row_block_) {
      rows_block(s, first, smaller(row_block_, last - first), false);
    }
  }

  void run_keys(qacg::Unit unit) {
    const Sequence s = sequence_of(p_, unit.sequence, unit.head);
    for (int64_t block = unit.first; block < unit.last; ++block) {
      const int64_t key = block * kKeyBlock;
      if (key >= s.keys) break;
      keys_block(s, key, smaller(kKeyBlock, s.keys - key));
    }
    if (unit.first == 0) end_hidden_keys(s);
  }

 private:
  void prefetch_operands(const Sequence& s, const qacg::Unit* next) {
    if constexpr (ReadsInPlace<Engine>) return;
    engine_.prefetch.clear();
    const auto add = [&](const qacg::Tensor4& t, const Sequence& of, int64_t rows, bool written) {
      engine_.prefetch.add(row_of<const Scalar>(t, of, 0), t.row * sizeof(Scalar), rows, written);
    };
    if (!g_.streams) {
      for (const qacg::Tensor4* t : {&g_.query, &g_.context_query}) add(*t, s, s.queries, true);
      for (const qacg::Tensor4* t : {&g_.key, &g_.context_key, &g_.value}) add(*t, s, s.keys, true);
    }
    if (next) {
      const Sequence n = sequence_of(p_, next->sequence, next->head);
      for (const qacg::Tensor4* t : {&p_.key, &p_.context_key, &p_.value}) add(*t, n, n.keys, false);
      for (const qacg::Tensor4* t : {&p_.query, &p_.context_query, &g_.out}) add(*t, n, n.queries, false);
    }
    if (s.keys == 0) return;
    const int64_t blocks = (s.queries + Engine::kRowBlock - 1) / Engine::kRowBlock,
                  spans = (s.keys + span_ - 1) / span_;
    engine_.prefetch.spread(p_.head_dim * sizeof(Scalar),
                            blocks * Engine::steps(s.keys, dim_, 3, 2, 3) + s.queries * spans);
  }

  // Packs keys [key, key + count) as right operands of scores.
  void begin_panels(const Sequence& s, int64_t key, int64_t count) {
    const auto panels = [&](const qacg::Tensor4& t, Packed* to) {
      return panels_of<Engine>(row_of<const Scalar>(t, s, key), t.row, count, p_.head_dim, to);
    };
    right_keys_ = panels(p_.key, key_panels_);
    right_context_keys_ = panels(p_.context_key, context_panels_);
    right_values_ = panels(p_.value, value_panels_);
  }

  void begin_keys(const Sequence& s, int64_t key, int64_t count) {
    if (count == 0) return;
    begin_panels(s, key, count);
    begin_sums(s, count);
    begin_key_gates(s, key, count);
  }

  // Prepares the sums over queries for `count` keys, and clears them if necessary.
  void begin_sums(const Sequence& s, int64_t count) {
    sum_keys_ = round_up(count, Engine::kKeyStep);
    // The first block of rows writes the sums, unless it does not see every key.
    sums_begun_ = p_.is_causal || s.queries == 0;
    const size_t bytes = sums_begun_ ? Engine::key_sums_size(sum_keys_, dim_) * sizeof(float) : 0;
    for (float* total : {key_sum_, context_key_sum_, value_sum_}) memset(total, 0, bytes);
  }

  void begin_key_gates(const Sequence& s, int64_t key, int64_t count) {
    const int64_t padded = round_up(count, kLanes);
    memset(key_gate_sum_, 0, padded * sizeof(float));
    if (p_.column_gate) {
      for (int64_t j = 0; j < padded; ++j) {
        key_gate_[j] = key + j < s.keys ? at(p_.key_gate, s, key + j) : 0.0f;
      }
    }
  }

  void pack_key_rows(const Sequence& s) {
    if (s.keys == 0) return;
    const auto rows = [&](const qacg::Tensor4& t, Packed* to) {
      return summed_rows<Engine>(row_of<const Scalar>(t, s, 0), t.row, s.keys, p_.head_dim, to);
    };
    summed_keys_ = rows(p_.key, keys_);
    summed_context_keys_ = rows(p_.context_key, context_keys_);
  }

  Block begin_rows(const Sequence& s, int64_t first, int64_t rows) {
    const auto left = [&](const qacg::Tensor4& t, Packed* to) {
      return Engine::pack_left(row_of<const Scalar>(t, s, first), t.row, rows, p_.head_dim, to);
    };
    for (int64_t r = 0; r < rows; ++r) {
      bias_[r] = quasi_bias_of_row(p_, s, first + r);
      if (p_.lambda.data) {
        lambda_[r] = at(p_.lambda, s, first + r);
      } else {
        const float query_part = 1.0f - p_.beta * at(p_.query_gate, s, first + r);
        lambda_[r] = p_.column_gate ? query_part : query_part - p_.gamma * at(p_.key_gate, s, first + r);
      }
      lambda_sum_[r] = 0;
    }
    return {left(p_.query, query_left_), left(p_.context_query, context_left_), left(g_.out, grad_left_), first, rows};
  }

  void pack_query_rows(const Sequence& s, const Block& b) {
    const auto pack = [&](const Left& left, const qacg::Tensor4& t, Packed* to) {
      return key_summed_rows<Engine>(left, row_of<const Scalar>(t, s, b.first), t.row, b.rows, p_.head_dim, to);
    };
    summed_queries_ = pack(b.query, p_.query, query_);
    summed_context_queries_ = pack(b.context_query, p_.context_query, context_query_);
    summed_grads_ = pack(b.grad, g_.out, grad_);
  }

  void rows_block(const Sequence& s, int64_t first, int64_t rows, bool keys_too) {
    const Block b = begin_rows(s, first, rows);
    if (keys_too) pack_query_rows(s, b);
    const int64_t keys = seen_keys(p_, s, first + rows - 1);
    const bool delta_in_tile = !p_.softmax_out.data && keys <= span_;
    if (!delta_in_tile) find_delta(s, b, keys);
    for (int64_t key = 0; key < keys; key += span_) {
      const int64_t count = smaller(span_, keys - key), cols = round_up(count, Engine::kKeyStep);
      scores(b, key, cols);
      for (int64_t r = 0; r < rows; ++r) {
        gradient_row(s, b, r, key, key, count, cols, delta_in_tile, keys_too);
        engine_.prefetch.step();
      }
      if (keys_too) add_to_keys(b, key, count);
      add_to_queries(b, key, count, cols);
    }
    sums_begun_ = true;
    end_rows(s, b, keys);
  }

  void few_queries_keys_block(const Sequence& s, int64_t key, int64_t count) {
    begin_panels(s, 0, s.keys);
    const Block b = begin_rows(s, 0, s.queries);
    pack_query_rows(s, b);
    for (int64_t r = 0; r < b.rows; ++r) delta_[r] = at(g_.delta, s, r);
    const int64_t keys = s.queries > 0 ? seen_keys(p_, s, s.queries - 1) : 0, seen = smaller(count, keys - key);
    few_queries_tiles(s, b, key, count, seen, false);
    write_keys(s, b, key, count, seen);
  }

  void keys_block(const Sequence& s, int64_t key, int64_t count) {
    if constexpr (ReadsInPlace<Engine>) {
      if (few_queries_) return few_queries_keys_block(s, key, count);
    }
    begin_keys(s, key, count);
    const int64_t cols = round_up(count, Engine::kKeyStep);
    // In a causal call no query before the block's first key sees the block.
    const int64_t start = p_.is_causal ? key / row_block_ * row_block_ : 0;
    for (int64_t first = start; first < s.queries; first += row_block_) {
      const Block b = begin_rows(s, first, smaller(row_block_, s.queries - first));
      pack_query_rows(s, b);
      for (int64_t r = 0; r < b.rows; ++r) delta_[r] = at(g_.delta, s, first + r);
      scores(b, 0, cols);
      for (int64_t r = 0; r < b.rows; ++r) gradient_row(s, b, r, key, 0, count, cols, false, true);
      add_to_keys(b, 0, count);
      sums_begun_ = true;
    }
    end_keys(s, key, count);
  }

  // Computes the three products of queries and keys (scores, context scores, dA), for packed columns from `packed` on.
  void scores(const Block& b, int64_t packed, int64_t cols) {
    engine_.scores(b.rows, cols, dim_, b.query, right_keys_, packed, softmax_, stride_);
    engine_.scores(b.rows, cols, dim_, b.context_query, right_context_keys_, packed, quasi_, stride_);
    engine_.scores(b.rows, cols, dim_, b.grad, right_values_, packed, grad_attention_, stride_);
  }

  void find_delta(const Sequence& s, const Block& b, int64_t keys) {
    p_.softmax_out.data ? delta_from_output(s, b) : delta_from_scores(s, b, keys);
  }

  // delta_i = dO_i . O1_i
  void delta_from_output(const Sequence& s, const Block& b) {
    for (int64_t r = 0; r < b.rows; ++r) {
      const Scalar* grad = row_of<const Scalar>(g_.out, s, b.first + r);
      const Scalar* out = row_of<const Scalar>(p_.softmax_out, s, b.first + r);
      float total = 0;
      for (int64_t d = 0; d < p_.head_dim; ++d) total += widen(grad[d]) * widen(out[d]);
      delta_[r] = total;
    }
  }

  // delta_i = sum_j P_ij dA_ij in a separate sweep, for a long row whose O1 was not saved.
  void delta_from_scores(const Sequence& s, const Block& b, int64_t keys) {
    for (int64_t r = 0; r < b.rows; ++r) delta_[r] = 0;
    for (int64_t key = 0; key < keys; key += span_) {
      const int64_t count = smaller(span_, keys - key), cols = round_up(count, Engine::kKeyStep);
      engine_.scores(b.rows, cols, dim_, b.query, right_keys_, key, softmax_, stride_);
      engine_.scores(b.rows, cols, dim_, b.grad, right_values_, key, grad_attention_, stride_);
      for (int64_t r = 0; r < b.rows; ++r) {
        const RowState row = begin_row(s, b, r, key, count, softmax_ + r * stride_, nullptr);
        Vec total = Vec{};
        for (int64_t j = 0; j < row.seen; j += kLanes) {
          const Vec p = softmax_of(row, softmax_ + r * stride_ + j, lanes_below(row.seen - j));
          total += p * kept_gradient(row, j, grad_attention_ + r * stride_);
        }
        delta_[r] += sum(total);
      }
    }
  }

  struct RowState {
    int64_t seen;
    float factor, shift, context_factor, normalise, keep_scale;
  };

  // Masks a row's scores, and draws which of its entries dropout keeps.
  RowState begin_row(const Sequence& s, const Block& b, int64_t r, int64_t key, int64_t count, float* scores,
                     float* context_scores) {
    const int64_t i = b.first + r;
    int64_t seen = seen_keys(p_, s, i) - key;
    seen = seen < 0 ? 0 : smaller(seen, count);
    const float row_max = at(p_.row_max, s, i), row_sum = at(p_.row_sum, s, i);
    // A row that sees no key has P = 0.
    const bool empty = row_max == -kInfinity && row_sum == 0;
    float shift = row_max == -kInfinity ? 0.0f : row_max;
    float factor = scale_row<Scalar>(p_, s, i, key, seen, scores), context_factor = factor;
    if (p_.mask_kind == qacg::Mask::kAdditive) {  // as softmax_row of the forward does
      for (int64_t j = 0; j < seen; ++j) scores[j] = (scores[j] - shift) * factor;
      factor = 1, shift = 0;
    }
    if (context_scores) context_factor = scale_row<Scalar>(p_, s, i, key, seen, context_scores);
    if (p_.has_dropout) keep_row(p_, s, i, key, seen, keep_);
    const float normalise = empty ? 0.0f : 1.0f / row_sum;
    return {seen, factor, shift, context_factor, normalise, p_.has_dropout ? p_.keep_scale : 1.0f};
  }

  static QACG_INLINE Vec softmax_of(const RowState& row, const float* scores, IntVec lanes) {
    return keep_where(
        lanes, exp2<Scalar>(multiply_subtract(load(scores), splat(row.factor), splat(row.shift))) * row.normalise);
  }

  QACG_INLINE Vec kept_gradient(const RowState& row, int64_t j, const float* grad) const {
    const Vec g = load(grad + j) * row.keep_scale;
    return p_.has_dropout ? keep_where(load_mask(keep_ + j), g) : g;
  }

  // Replaces a row of the three tiles by A (softmax_), dT (grad_attention_) and dTc (quasi_), without the factor scale.
  // The tile's first key is `key` in the sequence and `packed` in the packed operands.
  void gradient_row(const Sequence& s, const Block& b, int64_t r, int64_t key, int64_t packed, int64_t count,
                    int64_t cols, bool delta_in_tile, bool keys_too) {
    float* softmax = softmax_ + r * stride_;
    float* quasi = quasi_ + r * stride_;
    float* grad = grad_attention_ + r * stride_;
    const RowState row = begin_row(s, b, r, key, count, softmax, quasi);
    const Vec row_gate = splat(lambda_[r]), bias = splat(bias_[r]);
    const float alpha = p_.quasi_scale;
    const bool is_masked = p_.mask_kind != qacg::Mask::kNone;
    const Vec hidden = splat(is_masked ? (kHiddenScore - bias_[r]) / row.context_factor : 0.0f);

    specialise(
        [&](auto whole_row, auto masked, auto drop, auto column, auto first_of_pair) {
          const auto softmax_at = [&](int64_t j, IntVec lanes)
                                      QACG_INLINE_LAMBDA { return softmax_of(row, softmax + j, lanes); };
          const auto sigmoid_at = [&](int64_t j, IntVec lanes) QACG_INLINE_LAMBDA {
            const Vec score = load(quasi + j);
            if (masked) lanes &= ~(IntVec)(score <= hidden);
            return keep_where(lanes, biased_sigmoid<Scalar, false>(score, splat(row.context_factor), bias));
          };
          const auto gradient_at = [&](int64_t j) QACG_INLINE_LAMBDA {
            const Vec g = load(grad + j);
            return drop ? keep_where(load_mask(keep_ + j), g * row.keep_scale) : g;
          };
          Vec lambda_total = Vec{};
          const auto finish = [&](int64_t j, Vec p, Vec sigma, Vec d_attention, Vec delta) QACG_INLINE_LAMBDA {
            const Vec gate = column ? row_gate - p_.gamma * load(key_gate_ + packed + j) : row_gate;
            const Vec g = alpha * sigma;
            Vec attention = p + gate * g;
            if (drop) attention = keep_where(load_mask(keep_ + j), attention * row.keep_scale);
            const Vec gate_gradient = d_attention * g;
            lambda_total += gate_gradient;
            if (column && first_of_pair) {
              store(key_gate_sum_ + packed + j, load(key_gate_sum_ + packed + j) + gate_gradient);
            }
            store(softmax + j, attention);
            store(quasi + j, gate * gate_gradient * (1.0f - sigma));
            store(grad + j, p * (d_attention - delta));
          };
          const int64_t whole = row.seen / kLanes * kLanes;
          const IntVec tail = lanes_below(row.seen - whole);
          int64_t j = 0;
          if (whole_row) {
            Vec delta_total = Vec{};
            const auto begin = [&](int64_t j, IntVec lanes) QACG_INLINE_LAMBDA {
              const Vec p = softmax_at(j, lanes), d_attention = gradient_at(j);
              delta_total += p * d_attention;
              store(softmax + j, p);
              store(grad + j, d_attention);
              store(quasi + j, sigmoid_at(j, lanes));
            };
            for (; j < whole; j += kLanes) begin(j, kAllLanes);
            if (j < row.seen) begin(j, tail);
            delta_[r] = sum(delta_total);
            const Vec delta = splat(delta_[r]);
            for (j = 0; j < row.seen; j += kLanes) {
              finish(j, load(softmax + j), load(quasi + j), load(grad + j), delta);
            }
          } else {
            const Vec delta = splat(delta_[r]);
            for (; j < whole; j += kLanes) {
              finish(j, softmax_at(j, kAllLanes), sigmoid_at(j, kAllLanes), gradient_at(j), delta);
            }
            if (j < row.seen) finish(j, softmax_at(j, tail), sigmoid_at(j, tail), gradient_at(j), delta), j += kLanes;
          }
          for (; j < cols; j += kLanes) {
            for (float* tile : {softmax, quasi, grad}) store(tile + j, Vec{});
          }
          lambda_sum_[r] += sum(lambda_total);
        },
        delta_in_tile, is_masked, p_.has_dropout, p_.column_gate, keys_too);
  }

  void add_to_keys(const Block& b, int64_t packed, int64_t count) {
    const auto add = [&](const float* tile, const Packed* rows, float* total) {
      engine_.key_sums(tile, stride_, b.rows, count, dim_, rows, left_, total, packed, sum_keys_, sums_begun_);
    };
    add(softmax_, summed_grads_, value_sum_);
    add(grad_attention_, summed_queries_, key_sum_);
    add(quasi_, summed_context_queries_, context_key_sum_);
  }

  void add_to_queries(const Block& b, int64_t key, int64_t count, int64_t cols) {
    const auto add = [&](const float* tile, const Right<Engine>& rows, float* total) {
      const Left a = Engine::left(tile, stride_, b.rows, cols, left_);
      engine_.weighted_sum(b.rows, count, dim_, a, rows, key, total, key > 0);
    };
    add(grad_attention_, summed_keys_, query_sum_);
    add(quasi_, summed_context_keys_, context_query_sum_);
  }

  // Writes the gradients of keys [key, key + count) directly from the tiles, whose rows see the first `seen` of these
  // keys.
  void write_keys(const Sequence& s, const Block& b, int64_t key, int64_t count, int64_t seen) {
    if (p_.column_gate) {
      for (int64_t j = 0; j < count; ++j) column_logit(s, key, j);
    }
    const auto write = [&](const float* tile, const Packed* x, const qacg::Tensor4& gradient, float factor,
                           int vector) {
      Scalar* to = row_of<Scalar>(gradient, s, key);
      const float* v =
          vector && p_.gate_vectors ? p_.gate_vectors + (vector * p_.heads + s.head) * p_.head_dim : nullptr;
      const auto put = [&](int64_t j, int64_t d, Vec total) QACG_INLINE_LAMBDA {
        total *= factor;
        if (v) total += at(g_.key_logit, s, key + j) * load(v + d);
        Scalar* at = to + j * gradient.row + d;
        g_.streams ? stream(at, total) : store(at, total);
      };
      Engine::sums_over_queries(tile, stride_, b.rows, smaller(count, seen), dim_, x, put);
      for (int64_t j = seen > 0 ? seen : 0; j < count; ++j) {
        for (int64_t d = 0; d < dim_; d += kLanes) put(j, d, Vec{});
      }
    };
    write(grad_attention_, summed_queries_, g_.key, p_.scale, 2);
    write(quasi_, summed_context_queries_, g_.context_key, p_.scale, 3);
    write(softmax_, summed_grads_, g_.value, 1.0f, 0);
  }

  // Writes total * scale + logit * vector to a row of the output; `vector` is the index of one of the four gate
  // vectors.
  void write_gradient(const float* total, float logit, int vector, const Sequence& s, Scalar* to) const {
    if (!p_.gate_vectors) return write_row(total, p_.scale, p_.head_dim, to, g_.streams);
    const float* v = p_.gate_vectors + (vector * p_.heads + s.head) * p_.head_dim;
    int64_t d = 0;
    for (; d + kLanes <= p_.head_dim; d += kLanes) {
      const Vec gradient = load(total + d) * p_.scale + logit * load(v + d);
      g_.streams ? stream(to + d, gradient) : store(to + d, gradient);
    }
    for (; d < p_.head_dim; ++d) store_one(to + d, total[d] * p_.scale + logit * v[d]);
  }

  void end_rows(const Sequence& s, const Block& b, int64_t keys) {
    if (keys <= 0) {
      for (float* total : {query_sum_, context_query_sum_}) memset(total, 0, b.rows * dim_ * sizeof(float));
      for (int64_t r = 0; r < b.rows; ++r) delta_[r] = 0;
    }
    for (int64_t r = 0; r < b.rows; ++r) {
      const int64_t i = b.first + r;
      at(g_.delta, s, i) = delta_[r];
      float query_logit = 0;
      if (p_.lambda.data) {
        at(g_.lambda, s, i) = lambda_sum_[r];
      } else {
        query_logit = logit_gradient(s, i, -p_.beta * lambda_sum_[r], p_.query_gate, g_.query_gate);
        at(g_.query_logit, s, i) = query_logit;
        if (!p_.column_gate) {
          at(g_.key_logit, s, i) = logit_gradient(s, i, -p_.gamma * lambda_sum_[r], p_.key_gate, g_.key_gate);
        }
      }
      write_gradient(query_sum_ + r * dim_, query_logit, 0, s, row_of<Scalar>(g_.query, s, i));
      write_gradient(context_query_sum_ + r * dim_, query_logit, 1, s, row_of<Scalar>(g_.context_query, s, i));
    }
  }

  // Returns the gradient of x from `gradient`, that of a gate sigmoid(x), after adding the upstream gradient
  // `incoming`.
  static float logit_gradient(const Sequence& s, int64_t i, float gradient, const qacg::Rows& gate,
                              const qacg::Rows& incoming) {
    if (incoming.data) gradient += at(incoming, s, i);
    const float value = at(gate, s, i);
    return gradient * value * (1.0f - value);
  }

  float column_logit(const Sequence& s, int64_t key, int64_t j) {
    const float logit = logit_gradient(s, key + j, -p_.gamma * key_gate_sum_[j], p_.key_gate, g_.key_gate);
    return at(g_.key_logit, s, key + j) = logit;
  }

  void end_keys(const Sequence& s, int64_t key, int64_t count) {
    for (int64_t first = 0; first < count; first += kLanes) {
      const auto rows = [&](float* total, float* scratch) {
        return Engine::key_sum_rows(total, first, sum_keys_, dim_, scratch);
      };
      float* keys = rows(key_sum_, key_rows_);
      float* context_keys = rows(context_key_sum_, context_key_rows_);
      float* values = rows(value_sum_, value_rows_);
      for (int64_t j = first; j < smaller(first + kLanes, count); ++j) {
        float key_logit = 0;
        if (p_.column_gate) {
          key_logit = column_logit(s, key, j);
        } else if (p_.gate_vectors) {
          key_logit = at(g_.key_logit, s, key + j);
        }
        const int64_t row = (j - first) * dim_;
        write_gradient(keys + row, key_logit, 2, s, row_of<Scalar>(g_.key, s, key + j));
        write_gradient(context_keys + row, key_logit, 3, s, row_of<Scalar>(g_.context_key, s, key + j));
        write_row(values + row, 1.0f, p_.head_dim, row_of<Scalar>(g_.value, s, key + j), g_.streams);
      }
    }
  }

  // Keys at and beyond the length have no gradient except that of a row gate, which reads the key at each query's
  // position.
  void end_hidden_keys(const Sequence& s) {
    if (p_.cu_seqlens) return;
    for (int64_t j = s.keys; j < p_.key_length; ++j) {
      if (p_.column_gate) at(g_.key_logit, s, j) = logit_gradient(s, j, 0, p_.key_gate, g_.key_gate);
      const bool reached = p_.gate_vectors && !p_.column_gate;
      const float key_logit = reached ? at(g_.key_logit, s, j) : 0.0f;
      Scalar* to[] = {row_of<Scalar>(g_.key, s, j), row_of<Scalar>(g_.context_key, s, j)};
      for (int side = 0; side < 2; ++side) {
        const float* v = p_.gate_vectors + ((2 + side) * p_.heads + s.head) * p_.head_dim;
        for (int64_t d = 0; d < p_.head_dim; ++d) store_one(to[side] + d, reached ? key_logit * v[d] : 0.0f);
      }
      memset(row_of<Scalar>(g_.value, s, j), 0, p_.head_dim * sizeof(Scalar));
    }
  }

  FlushDenormals flush_denormals_;
  const qacg::Problem& p_;
  const qacg::Gradients& g_;
  Engine engine_;
  const int64_t dim_;
  int64_t row_block_, span_, stride_, used_;
  bool sums_begun_ = false, few_queries_ = false;
  int64_t sum_keys_ = 0;  // keys that the sums over queries are laid out for
  Packed *key_panels_, *context_panels_, *value_panels_, *keys_, *context_keys_;
  Packed *query_left_, *context_left_, *grad_left_, *query_, *context_query_, *grad_, *left_;
  // Right operands: the packed operands above, or the caller's rows.
  Right<Engine> right_keys_{}, right_context_keys_{}, right_values_{}, summed_keys_{}, summed_context_keys_{};
  const Packed *summed_queries_, *summed_context_queries_, *summed_grads_;
  float *softmax_, *quasi_, *grad_attention_;  // tiles
  float *query_sum_, *context_query_sum_, *key_sum_, *context_key_sum_, *value_sum_;
  float *key_rows_, *context_key_rows_, *value_rows_;
  float *key_gate_, *key_gate_sum_, *lambda_, *bias_, *delta_, *lambda_sum_;
  int32_t* keep_;
};

// Gradients of the gate vectors and biases from one sequence and head: sums over rows of logit gradient times input.
template <typename Scalar>
void gate_sums(const qacg::Problem& p, const qacg::Gradients& g, int64_t sequence, int64_t head) {
  const Sequence s = sequence_of(p, sequence, head);
  const int64_t item = sequence * p.heads + head;
  for (int side = 0; side < 2; ++side) {
    float* vector = g.gate_vectors + (item * 4 + 2 * side) * p.head_dim;
    float* context_vector = vector + p.head_dim;
    memset(vector, 0, 2 * p.head_dim * sizeof(float));
    const qacg::Rows& logits = side ? g.key_logit : g.query_logit;
    const int64_t all_keys = p.cu_seqlens ? s.keys : p.key_length;
    const int64_t rows = side && p.column_gate ? all_keys : s.queries;
    float bias = 0;
    // Sums blocks of 32 rows first, and then the blocks, which has smaller rounding errors than one long sum.
    for (int64_t first = 0; first < rows; first += kSumBlock) {
      float block[2 * kLargestHead] = {}, block_bias = 0;
      for (int64_t i = first; i < smaller(first + kSumBlock, rows); ++i) {
        const float logit = at(logits, s, i);
        block_bias += logit;
        if (side && p.column_gate && i >= s.keys) continue;
        const Scalar* inputs[] = {row_of<const Scalar>(side ? p.key : p.query, s, i),
                                  row_of<const Scalar>(side ? p.context_key : p.context_query, s, i)};
        for (int v = 0; v < 2; ++v) {
          float* total = block + v * kLargestHead;
          int64_t d = 0;
          for (; d + kLanes <= p.head_dim; d += kLanes) store(total + d, load(total + d) + logit * load(inputs[v] + d));
          for (; d < p.head_dim; ++d) total[d] += logit * widen(inputs[v][d]);
        }
      }
      for (int64_t d = 0; d < p.head_dim; ++d) {
        vector[d] += block[d];
        context_vector[d] += block[kLargestHead + d];
      }
      bias += block_bias;
    }
    g.gate_biases[item * 2 + side] = bias;
  }
}

}  // namespace QACG_ISA

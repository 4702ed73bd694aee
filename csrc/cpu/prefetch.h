// Prefetches operands into the second-level cache, a few lines at each step() between products. Memory is otherwise
// idle while products run.
#pragma once

#include "vec.h"

namespace QACG_ISA {

class Prefetch {
 public:
  void clear() { added_ = range_ = 0, per_step_ = 0; }
  // Adds rows that will be read, or written; `stride` is in bytes.
  void add(const void* rows, int64_t stride, int64_t count, bool written = false) {
    if (count > 0) ranges_[added_++] = {static_cast<const char*>(rows), stride, count, 0, written};
  }

  // Spreads the first `row_bytes` of every added row over `steps` calls of step(). Adjacent rows count as one.
  void spread(int64_t row_bytes, int64_t steps) {
    int64_t lines = 0;
    for (int r = 0; r < added_; ++r) {
      Range& range = ranges_[r];
      range.row_bytes = row_bytes;
      if (range.stride == row_bytes) range.row_bytes *= range.count, range.count = 1;
      lines += range.count * lines_of(range.row_bytes);
    }
    per_step_ = steps > 0 ? (lines + steps - 1) / steps : 0;
    if (added_ > 0) begin_row(ranges_[0].rows);
  }

  QACG_INLINE void step() {
    for (int64_t left = per_step_; left > 0 && range_ < added_;) {
      const int64_t there = lines_of(end_ - next_), now = smaller(left, there);
      const char* last = next_ + now * kLine;
      if (ranges_[range_].written) {
        for (; next_ < last; next_ += kLine) __builtin_prefetch(next_, 1, 2);
      } else {
        for (; next_ < last; next_ += kLine) __builtin_prefetch(next_, 0, 2);
      }
      left -= now;
      if (now < there) return;
      Range& range = ranges_[range_];
      if (--range.count > 0) {
        begin_row(range.rows += range.stride);
      } else if (++range_ < added_) {
        begin_row(ranges_[range_].rows);
      }
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  static constexpr int kRanges = 16;
  struct Range {
    const char* rows;
    int64_t stride, count, row_bytes;
    bool written;
  };
  static int64_t lines_of(int64_t bytes) { return (bytes + kLine - 1) / kLine; }
  QACG_INLINE void begin_row(const char* row) { next_ = row, end_ = row + ranges_[range_].row_bytes; }

  Range ranges_[kRanges];
  int added_ = 0, range_ = 0;
  int64_t per_step_ = 0;
  const char *next_ = nullptr, *end_ = nullptr;
};

// Prefetches contiguous memory at a constant rate.
class Stream {
 public:
  // Prefetches `bytes` bytes from `from` on, `per_step` of them at every call of step().
  void begin(const void* from, int64_t bytes, int64_t per_step) {
    next_ = static_cast<const char*>(from), end_ = next_ + bytes;
    per_step_ = round_up(per_step, kLine);
  }

  QACG_INLINE void step() {
    if (next_ >= end_) return;
    for (const char* last = next_ + per_step_; next_ < last; next_ += kLine) __builtin_prefetch(next_, 0, 2);
  }

 private:
  static constexpr int64_t kLine = 64;
  const char *next_ = nullptr, *end_ = nullptr;
  int64_t per_step_ = 0;
};

}  // namespace QACG_ISA

// Prefetches operands like Prefetch of prefetch.h, for AMX, whose kernels were 3 to 8 % slower with that class although
// its step() has fewer instructions (NOTES.md).
#pragma once

#include "vec.h"

namespace QACG_ISA {

class PrefetchBetweenTiles {
 public:
  void clear() { added_ = range_ = 0, row_ = byte_ = per_step_ = 0; }
  // Adds rows that will be read, or written; `stride` is in bytes.
  void add(const void* rows, int64_t stride, int64_t count, bool written = false) {
    if (count > 0) ranges_[added_++] = {static_cast<const char*>(rows), stride, count, written};
  }

  // Spreads the first `row_bytes` of every added row over `steps` calls of step().
  void spread(int64_t row_bytes, int64_t steps) {
    row_bytes_ = row_bytes;
    int64_t rows = 0;
    for (int r = 0; r < added_; ++r) rows += ranges_[r].count;
    per_step_ = steps > 0 ? (rows * lines_per_row() + steps - 1) / steps : 0;
  }

  QACG_INLINE void step() {
    for (int64_t n = 0; n < per_step_ && range_ < added_; ++n) {
      const Range& range = ranges_[range_];
      const char* line = range.rows + row_ * range.stride + byte_;
      range.written ? __builtin_prefetch(line, 1, 2) : __builtin_prefetch(line, 0, 2);
      byte_ += kLine;
      if (byte_ < row_bytes_) continue;
      byte_ = 0;
      if (++row_ == range.count) row_ = 0, ++range_;
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  static constexpr int kRanges = 16;
  struct Range {
    const char* rows;
    int64_t stride, count;
    bool written;
  };
  int64_t lines_per_row() const { return (row_bytes_ + kLine - 1) / kLine; }

  Range ranges_[kRanges];
  int added_ = 0, range_ = 0;
  int64_t row_ = 0, byte_ = 0, row_bytes_ = 0, per_step_ = 0;
};

}  // namespace QACG_ISA

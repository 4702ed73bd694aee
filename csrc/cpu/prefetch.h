// Operands of the next unit of work, fetched into the second-level cache a few lines at a time between products: the
// products leave the memory idle, and packing would leave the arithmetic idle.
#pragma once

#include "vec.h"

namespace QACG_ISA {

class Prefetch {
 public:
  // Rows of `stride` bytes each.
  void add(const void* rows, int64_t stride, int64_t count) {
    if (count > 0) ranges_[added_++] = {static_cast<const char*>(rows), stride, count};
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
      __builtin_prefetch(range.rows + row_ * range.stride + byte_, 0, 2);
      byte_ += kLine;
      if (byte_ < row_bytes_) continue;
      byte_ = 0;
      if (++row_ == range.count) row_ = 0, ++range_;
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  struct Range {
    const char* rows;
    int64_t stride, count;
  };
  int64_t lines_per_row() const { return (row_bytes_ + kLine - 1) / kLine; }

  Range ranges_[8];
  int added_ = 0, range_ = 0;
  int64_t row_ = 0, byte_ = 0, row_bytes_ = 0, per_step_ = 0;
};

}  // namespace QACG_ISA

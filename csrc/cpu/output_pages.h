// The pages of what a call writes.
//
// A result of many megabytes is often memory that the process has not had before, which the kernel clears at its first
// touch, 4 KB at a time: at 128 keys that takes a fifth of a call (NOTES.md). Asked for by 2 MB it takes a fifth of
// that, and all threads can do it at once. Memory that is there already is left as it is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace qacg {

class OutputPages {
 public:
  // Memory that the call will write from one end to the other.
  void add(void* data, int64_t bytes) {
    if (bytes < kLeast) return;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(data), end = begin + bytes;
    const Range inside{(begin + kPage - 1) / kPage * kPage, end / kPage * kPage};
#if defined(__linux__)
    // Whether there are such pages is the system's to say; where it has none, those of 4 KB do.
    madvise(reinterpret_cast<void*>(inside.begin), inside.end - inside.begin, MADV_HUGEPAGE);
#endif
    for (uintptr_t from = inside.begin; from < inside.end;) {
      const uintptr_t to = std::min(from / kHugePage * kHugePage + kHugePage, inside.end);
      pieces_.push_back({from, to});
      from = to;
    }
  }

  // Has the kernel clear one thread's share of the pages, of which no other thread then waits for half.
  void populate(int64_t worker, int64_t workers) const {
#if defined(__linux__)
    constexpr int kPopulateForWriting = 23;  // MADV_POPULATE_WRITE, since Linux 5.14; older headers lack the name
    for (size_t n = worker; n < pieces_.size(); n += workers) {
      const Range& piece = pieces_[n];
      if (madvise(reinterpret_cast<void*>(piece.begin), piece.end - piece.begin, kPopulateForWriting) != 0) return;
    }
#endif
  }

 private:
  struct Range {
    uintptr_t begin, end;
  };
  // The least that is worth a call of the system; NumPy draws the same line for its arrays.
  static constexpr int64_t kLeast = int64_t{4} << 20;
  static constexpr uintptr_t kPage = 4096, kHugePage = uintptr_t{2} << 20;
  std::vector<Range> pieces_;
};

}  // namespace qacg

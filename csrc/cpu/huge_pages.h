// The pages of what a call writes.
//
// A result of many megabytes is often memory that the process has not had before, which the kernel clears at its first
// touch, 4 KB at a time: at 128 keys that takes a fifth of a call (NOTES.md). By 2 MB it takes a quarter of that, and
// all threads can do it at once. Memory that is there already is left as it is.
//
// Where pages of 2 MB are given to those who ask (the mode "madvise"), a system whose free memory is in small pieces
// moves others' pages about to make one, and the asker waits for milliseconds. A call that has lost by it asks no more.
#pragma once

#include <cstdint>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#endif

namespace qacg {

#if defined(__linux__)

class OutputPages {
 public:
  // Memory that the call will write from one end to the other.
  void add(void* data, int64_t bytes) {
    if (bytes < kLeast) return;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(data), end = begin + bytes;
    const Range inside{(begin + kPage - 1) / kPage * kPage, end / kPage * kPage};
    ranges_.push_back(inside);
    for (uintptr_t from = inside.begin; from < inside.end;) {
      const uintptr_t to = std::min(from / kHugePage * kHugePage + kHugePage, inside.end);
      pieces_.push_back({from, to});
      from = to;
    }
    if (given_to_askers()) asks_ = advise(inside, MADV_HUGEPAGE);
  }

  // Has one thread's share of the pages cleared. Left to the first touch, two threads that come to the same huge page
  // would both clear one, of which one is thrown away.
  void populate(int64_t worker, int64_t workers) const {
    constexpr int kPopulateForWriting = 23;  // MADV_POPULATE_WRITE, since Linux 5.14; older headers lack the name
    for (size_t n = worker; n < pieces_.size(); n += workers) {
      // Of the processor and not of the clock: on a busy machine every piece would seem to take long.
      const int64_t start = processor_time();
      if (!advise(pieces_[n], kPopulateForWriting)) return;
      const int64_t saved = kSmallPages - (processor_time() - start);
      if ((saved_ += saved) >= -kMostLost || !asks_.exchange(false)) continue;
      for (const Range& range : ranges_) advise(range, MADV_NOHUGEPAGE);
    }
  }

 private:
  struct Range {
    uintptr_t begin, end;
  };

  static bool advise(const Range& range, int advice) {
    return madvise(reinterpret_cast<void*>(range.begin), range.end - range.begin, advice) == 0;
  }

  // Of this thread, in nanoseconds.
  static int64_t processor_time() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
  }

  // In the mode "always" they are given unasked, as far as they are at hand.
  static bool given_to_askers() {
    static const bool given = [] {
      char modes[64] = {};
      FILE* file = std::fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
      if (!file) return false;
      const bool read = std::fgets(modes, sizeof(modes), file);
      std::fclose(file);
      return read && std::strstr(modes, "[madvise]");
    }();
    return given;
  }

  // The least that is worth calls of the system; NumPy draws the same line for its arrays.
  static constexpr int64_t kLeast = int64_t{4} << 20;
  static constexpr uintptr_t kPage = 4096, kHugePage = uintptr_t{2} << 20;
  // What 512 pages of 4 KB take, in nanoseconds; a huge page takes 0.2 milliseconds, and one that has to be made 5
  // to 20.
  static constexpr int64_t kSmallPages = 700'000, kMostLost = 20'000'000;

  mutable std::atomic<bool> asks_{false};
  mutable std::atomic<int64_t> saved_{0};
  std::vector<Range> ranges_, pieces_;
};

#else

class OutputPages {
 public:
  void add(void*, int64_t) {}
  void populate(int64_t, int64_t) const {}
};

#endif

}  // namespace qacg

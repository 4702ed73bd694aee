// Huge pages for the outputs of a call.
//
// A result of many megabytes is often new memory, which the operating system clears at the first access, 4 KB at a
// time. At 128 keys this takes a fifth of a call (NOTES.md). With pages of 2 MB it takes a quarter of that, and all
// threads can do a share. Memory that is already mapped is not changed.
//
// In the mode "madvise" a process must request huge pages. If free memory is fragmented, the operating system then
// moves other pages, which takes milliseconds. If a call loses too much time this way, it stops requesting huge pages.
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

class HugePages {
 public:
  // Adds memory that the call will write completely.
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
    if (needs_request()) requests_ = advise(inside, MADV_HUGEPAGE);
  }

  // Clears one thread's share of the pages. Without this, two threads that first access the same huge page would both
  // clear a page, and one of the two would be discarded.
  void populate(int64_t worker, int64_t workers) const {
    constexpr int kPopulateForWriting = 23;  // MADV_POPULATE_WRITE, since Linux 5.14; older headers lack the name
    for (size_t n = worker; n < pieces_.size(); n += workers) {
      if (is_mapped(pieces_[n])) continue;
      // Processor time, because on a busy machine the wall time includes waits.
      const int64_t start = processor_time();
      if (!advise(pieces_[n], kPopulateForWriting)) return;
      const int64_t saved = kSmallPages - (processor_time() - start);
      if ((saved_ += saved) >= -kMostLost || !requests_.exchange(false)) continue;
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

  // Whether memory is already mapped, because it is reused. This test takes 1.4 us for 2 MB, populating it again 63 us.
  static bool is_mapped(const Range& piece) {
    unsigned char pages[kHugePage / kPage];
    if (mincore(reinterpret_cast<void*>(piece.begin), piece.end - piece.begin, pages) != 0) return false;
    return std::all_of(pages, pages + (piece.end - piece.begin) / kPage, [](unsigned char page) { return page & 1; });
  }

  // Processor time of this thread, in nanoseconds.
  static int64_t processor_time() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
  }

  // In the mode "always" the kernel uses huge pages without a request.
  static bool needs_request() {
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

  // The smallest size that is worth the system calls; NumPy has the same limit for its arrays.
  static constexpr int64_t kLeast = int64_t{4} << 20;
  static constexpr uintptr_t kPage = 4096, kHugePage = uintptr_t{2} << 20;
  // In nanoseconds: the time to clear 512 pages of 4 KB, and the total loss at which requests stop. A huge page takes
  // 0.2 milliseconds, and 5 to 20 if the kernel has to move other pages.
  static constexpr int64_t kSmallPages = 700'000, kMostLost = 20'000'000;

  mutable std::atomic<bool> requests_{false};
  mutable std::atomic<int64_t> saved_{0};
  std::vector<Range> ranges_, pieces_;
};

#else

class HugePages {
 public:
  void add(void*, int64_t) {}
  void populate(int64_t, int64_t) const {}
};

#endif

}  // namespace qacg

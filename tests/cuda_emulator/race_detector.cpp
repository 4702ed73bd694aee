// The shadow memory, the text of a race report, and the compiler's hooks.
#include "race_detector.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <string>
#include <vector>

namespace qacg::cuda::emulator::races {
namespace {

constexpr int kWarp = 32;

enum class Kind : uint16_t { kRead, kWrite, kBeginCopy, kEndCopy };
constexpr const char* kNames[] = {"read", "write", "cp.async", "cp.async"};

// One access to a byte. Its time is that of a clock which every barrier advances.
struct Access {
  uint32_t when = 0;  // 0: there was none
  int32_t where = 0;  // address in the code, relative to origin()
  uint16_t thread = 0;
  Kind kind = Kind::kRead;
};

// The stored accesses to a byte. The last write is enough, because a write that is not ordered after the one before has
// been reported. Two readers are enough: they are chosen so that a write that races with any reader races with one of
// them.
struct Byte {
  Access write;
  Access reads[2];
};

struct Block {
  const void* kernel = nullptr;
  int64_t index = 0;
  uintptr_t shared = 0;
  uint64_t bytes = 0;  // 0: no block runs
  int thread = 0;
  uint32_t clock = 0, met = 0;     // now, and the time of the block's last barrier
  std::vector<uint32_t> warp_met;  // time of each warp's last barrier, which may be the block's
};

Block block;
std::vector<Byte> shadow;
std::string report;
int64_t accesses = 0;

const char* origin() { return reinterpret_cast<const char*>(&place); }

bool in_this_epoch(const Access& access) { return access.when >= block.met; }

bool same_warp(const Access& a, const Access& b) { return a.thread / kWarp == b.thread / kWarp; }

// Whether an access came after the last barrier of its warp.
bool in_this_step(const Access& access) { return access.when >= block.warp_met[access.thread / kWarp]; }

// Whether nothing orders an earlier access and one that happens now.
bool unordered(const Access& before, const Access& now) {
  return in_this_epoch(before) && before.thread != now.thread && (!same_warp(before, now) || in_this_step(before));
}

void remember_read(Byte& byte, const Access& now) {
  Access &first = byte.reads[0], &second = byte.reads[1];
  if (!in_this_epoch(first)) {
    first = now;
    second = {};
  } else if (in_this_epoch(second) && !same_warp(first, second)) {
    // Any writer is of another warp than one of the two.
  } else if (!same_warp(first, now)) {
    second = now;
  } else if (!in_this_step(first)) {
    first = now;
    second = {};
  } else if (first.thread != now.thread && second.when == 0) {
    second = now;
  }
}

// A command's output.
std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return text;
  char piece[4096];
  while (size_t n = fread(piece, 1, sizeof(piece), pipe)) text.append(piece, n);
  pclose(pipe);
  return text;
}

// An address in the code as source lines of the kernels, innermost first, and the function that they are inlined into.
struct SourceLocation {
  std::string lines, function;
};

SourceLocation source_location(const char* where) {
  Dl_info module{};
  if (!dladdr(where, &module)) return {"?", "?"};
  char address[32];
  snprintf(address, sizeof(address), "0x%zx", static_cast<size_t>(where - static_cast<const char*>(module.dli_fbase)));
  SourceLocation found;
  // addr2line prints two lines for each function: its name; its file and line.
  const std::string text = output_of(std::string("addr2line -Cif -e '") + module.dli_fname + "' " + address + " 2>&1");
  for (size_t at = 0; at < text.size();) {
    const size_t name_end = text.find('\n', at), end = text.find('\n', name_end + 1);
    if (end == std::string::npos) break;
    found.function = text.substr(at, name_end - at);
    std::string line = text.substr(name_end + 1, end - name_end - 1);
    line = line.substr(line.rfind('/') + 1);
    line = line.substr(0, line.find(" ("));  // "(discriminator 3)"
    if (line.find("_emulator.h") == std::string::npos) found.lines += (found.lines.empty() ? "" : ", from ") + line;
    at = end + 1;
  }
  if (found.lines.empty()) found.lines = std::string(module.dli_fname) + "+" + address;
  found.function = found.function.substr(0, found.function.find('('));  // without the types of its parameters
  return found;
}

std::string describe(const Access& access) {
  // The stored address is the return address of a call, which may belong to the next line.
  const std::string lines = source_location(origin() + access.where - 1).lines;
  return std::string(kNames[static_cast<int>(access.kind)]) + " by lane " + std::to_string(access.thread % kWarp) +
         " of warp " + std::to_string(access.thread / kWarp) + " (" + lines + ")";
}

void report_race(const Access& before, const Access& now, uint64_t offset) {
  const std::string kernel = source_location(static_cast<const char*>(block.kernel)).function;
  report =
      "a race in " + kernel + ", block " + std::to_string(block.index) + ", byte " + std::to_string(offset) +
      " of shared memory: " + describe(before) +
      (before.kind == Kind::kBeginCopy ? "; before its thread has waited for it, " : "; with no barrier between, ") +
      describe(now);
}

// The first earlier access to a byte that an access races with, or null.
const Access* conflicting_access(const Byte& byte, const Access& now) {
  // Until a copy has been waited for, not even its own thread may touch the bytes.
  if (byte.write.kind == Kind::kBeginCopy) {
    if (now.kind == Kind::kEndCopy && now.thread == byte.write.thread) return nullptr;
    return &byte.write;
  }
  if (unordered(byte.write, now)) return &byte.write;
  if (now.kind == Kind::kRead) return nullptr;
  for (const Access& read : byte.reads) {
    if (unordered(read, now)) return &read;
  }
  return nullptr;
}

void check_access(Kind kind, int thread, const void* at, uint64_t bytes, Place where) {
  const uint64_t first = reinterpret_cast<uintptr_t>(at) - block.shared;
  if (first >= block.bytes) return;
  ++accesses;
  if (!report.empty()) return;
  const Access now{block.clock, static_cast<int32_t>(static_cast<const char*>(where) - origin()),
                   static_cast<uint16_t>(thread), kind};
  const uint64_t last = std::min(first + bytes, block.bytes);
  for (uint64_t n = first; n < last; ++n) {
    Byte& byte = shadow[n];
    if (const Access* before = conflicting_access(byte, now)) return report_race(*before, now, n);
    if (kind == Kind::kRead) {
      remember_read(byte, now);
    } else {
      byte.write = now;
    }
  }
}

}  // namespace

__attribute__((noinline)) Place place() { return __builtin_return_address(0); }

void begin_block(const void* kernel, int64_t index, const char* shared, int64_t bytes, int threads) {
  report.clear();
  shadow.assign(bytes, Byte{});
  block.kernel = kernel;
  block.index = index;
  block.shared = reinterpret_cast<uintptr_t>(shared);
  block.bytes = bytes;
  block.clock = block.met = 1;
  block.warp_met.assign((threads + kWarp - 1) / kWarp, 1);
}

void end_block() { block.bytes = 0; }

void run_thread(int thread) { block.thread = thread; }

void block_met() {
  block.met = ++block.clock;
  std::fill(block.warp_met.begin(), block.warp_met.end(), block.clock);
}

void warp_met(int warp) { block.warp_met[warp] = ++block.clock; }

void read(int thread, const void* from, int64_t bytes, Place where) {
  check_access(Kind::kRead, thread, from, bytes, where);
}

void write(int thread, const void* to, int64_t bytes, Place where) {
  check_access(Kind::kWrite, thread, to, bytes, where);
}

void begin_copy(int thread, const void* to, int64_t bytes, Place where) {
  check_access(Kind::kBeginCopy, thread, to, bytes, where);
}

void end_copy(int thread, const void* to, int64_t bytes, Place where) {
  check_access(Kind::kEndCopy, thread, to, bytes, where);
}

const char* found() { return report.empty() ? nullptr : report.c_str(); }

}  // namespace qacg::cuda::emulator::races

// GCC calls these before each access to memory, in code compiled with -fsanitize=thread.
#define QACG_HOOK extern "C" __attribute__((visibility("hidden")))
#define QACG_ACCESS(name, kind, bytes)                                              \
  QACG_HOOK void __tsan_##name(const void* at) {                                    \
    using namespace qacg::cuda::emulator::races;                                    \
    check_access(Kind::kind, block.thread, at, bytes, __builtin_return_address(0)); \
  }
#define QACG_ACCESSES(bytes)             \
  QACG_ACCESS(read##bytes, kRead, bytes) \
  QACG_ACCESS(write##bytes, kWrite, bytes)

QACG_ACCESSES(1)
QACG_ACCESSES(2)
QACG_ACCESSES(4)
QACG_ACCESSES(8)
QACG_ACCESSES(16)
QACG_ACCESS(unaligned_read2, kRead, 2)
QACG_ACCESS(unaligned_read4, kRead, 4)
QACG_ACCESS(unaligned_read8, kRead, 8)
QACG_ACCESS(unaligned_read16, kRead, 16)
QACG_ACCESS(unaligned_write2, kWrite, 2)
QACG_ACCESS(unaligned_write4, kWrite, 4)
QACG_ACCESS(unaligned_write8, kWrite, 8)
QACG_ACCESS(unaligned_write16, kWrite, 16)

QACG_HOOK void __tsan_read_range(const void* at, unsigned long bytes) {
  using namespace qacg::cuda::emulator::races;
  check_access(Kind::kRead, block.thread, at, bytes, __builtin_return_address(0));
}

QACG_HOOK void __tsan_write_range(const void* at, unsigned long bytes) {
  using namespace qacg::cuda::emulator::races;
  check_access(Kind::kWrite, block.thread, at, bytes, __builtin_return_address(0));
}

// For the emulator's own objects: no kernel has atomics or virtual functions.
QACG_HOOK void __tsan_init() {}
QACG_HOOK void __tsan_func_entry(void*) {}
QACG_HOOK void __tsan_func_exit() {}
QACG_HOOK void __tsan_vptr_update(void**, void*) {}
QACG_HOOK unsigned char __tsan_atomic8_load(const volatile unsigned char* at, int) { return *at; }
QACG_HOOK int __tsan_atomic32_fetch_add(volatile int* at, int more, int) {
  const int before = *at;
  *at = before + more;
  return before;
}

// The number of accesses to shared memory that were checked, one for each thread and instruction.
extern "C" int64_t qacg_emulator_accesses() { return qacg::cuda::emulator::races::accesses; }

// The choice of instruction set, by the processor, QACG_CPU_CAPABILITY and a measurement.

#include "capability.h"
#if defined(__aarch64__)
#include "neon_bf16.h"
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace qacg {

#if defined(__aarch64__)
extern const Kernels kNeonFloat32, kNeonBfloat16, kNeonFloat16, kNeonBf16Bfloat16;
#else
extern const Kernels kPlainFloat32, kPlainBfloat16, kPlainFloat16;
#endif
#if defined(__x86_64__)
extern const Kernels kAvx2Float32, kAvx2Bfloat16, kAvx2Float16, kAvx512Float32, kAvx512Bfloat16, kAvx512Float16,
    kAvx512Bf16Bfloat16, kAmxFloat32, kAmxBfloat16;
// See bf16_gain.h. The others run products on registers for about 0.1 ms, and return their FLOP.
double bfloat16_gain(), fma_burst(), vdpbf16ps_burst(), tile_burst();
#endif

namespace {

#if defined(__aarch64__)
enum Level { kNeon, kNeonBf16, kLevels };
constexpr const char* kNames[] = {"neon", "neon_bf16"};
constexpr const char* kNamesInWords = "neon or neon_bf16";
#else
enum Level { kPlain, kAvx2, kAvx512, kAvx512Bf16, kAmx, kLevels };
constexpr const char* kNames[] = {"plain", "avx2", "avx512", "avx512_bf16", "amx"};
constexpr const char* kNamesInWords = "plain, avx2, avx512, avx512_bf16 or amx";
#endif

struct Kind {
  const Kernels *float32, *bfloat16, *float16;

  const Kernels* of(Element element) const {
    return element == Element::kFloat32 ? float32 : element == Element::kBfloat16 ? bfloat16 : float16;
  }
};

int amx_error = 0;  // errno of Linux's refusal of AMX

// The end of a reason for the choice of AVX-512 on a processor with AMX.
std::string amx_refusal() {
  if (amx_error == 0) return "";
  const char* cause = ": a thread of this process has a signal stack below AT_MINSIGSTKSZ";
  return "; Linux refused AMX with errno " + std::to_string(amx_error) + (amx_error == ENOSPC ? cause : "");
}

#if defined(__x86_64__)
// Uses cpuid, because __builtin_cpu_supports depends on the compiler's runtime (Zig's does not support it). The names
// of the bits are from Intel's manual.
enum Register { kA, kB, kC, kD };

bool has(unsigned leaf, unsigned part, Register place, int bit) {
  unsigned r[4];
  return __get_cpuid_count(leaf, part, &r[kA], &r[kB], &r[kC], &r[kD]) && (r[place] >> bit & 1);
}

// Whether the operating system keeps these registers (bits of XCR0) when it switches threads.
bool keeps(unsigned registers) {
  if (!has(1, 0, kC, 27)) return false;  // OSXSAVE
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & registers) == registers;
}

// Processors with AVX2 have FMA and F16C, but a virtual machine may hide them.
bool has_avx2() { return keeps(0x6) && has(7, 0, kB, 5) && has(1, 0, kC, 12) && has(1, 0, kC, 29); }

// F, DQ, BW and VL.
bool has_avx512() {
  return keeps(0xe6) && has(7, 0, kB, 16) && has(7, 0, kB, 17) && has(7, 0, kB, 30) && has(7, 0, kB, 31);
}

bool has_avx512_bf16() { return has(7, 1, kA, 5); }

#if !defined(QACG_WITHOUT_AMX)
// Whether the processor has tiles for bfloat16 and the kernel lets this process use them (Linux requires a request).
bool has_amx() {
#if defined(QACG_SOFTWARE_TILES)
  return true;  // tests/check_sanitizers.py
#elif defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  if (!has(7, 0, kD, 22) || !has(7, 0, kD, 24)) return false;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) amx_error = errno;
  return amx_error == 0;
#else
  return false;
#endif
}
#endif

Level detect() {
  if (!has_avx2()) return kPlain;
  if (!has_avx512()) return kAvx2;
  if (!has_avx512_bf16()) return kAvx512;
#if !defined(QACG_WITHOUT_AMX)
  if (has_amx()) return kAmx;
#endif
  return kAvx512Bf16;
}

Kind kind_of(Level level) {
  switch (level) {
#if !defined(QACG_WITHOUT_AMX)
    case kAmx:
      // float16 is widened to float32, because no processor with float16 tiles has run this code.
      return {&kAmxFloat32, &kAmxBfloat16, &kAvx512Float16};
#endif
    case kAvx512Bf16:
      return {&kAvx512Float32, &kAvx512Bf16Bfloat16, &kAvx512Float16};
    case kAvx512:
      return {&kAvx512Float32, &kAvx512Bfloat16, &kAvx512Float16};
    case kAvx2:
      return {&kAvx2Float32, &kAvx2Bfloat16, &kAvx2Float16};
    default:
      return {&kPlainFloat32, &kPlainBfloat16, &kPlainFloat16};
  }
}

// vdpbf16ps also requires weights narrowed to bfloat16, so it is slower unless its rate is higher than float32's.
// Intel's processors compute about as many products per second as in float32, AMD's twice as many.
constexpr double kLeastGain = 1.5;

struct Measured {
  bool faster;
  std::string text;
};

const Measured& measured() {
  static const Measured found = [] {
    const double gain = bfloat16_gain();
    const bool faster = gain >= kLeastGain;
    char text[120];
    std::snprintf(text, sizeof(text),
                  "%smeasured at first use: vdpbf16ps computes %.2f times float32's products per second",
                  faster ? "" : "widened to float32; ", gain);
    return Measured{faster, text + amx_refusal()};
  }();
  return found;
}
#elif defined(__aarch64__)
Level detect() {
#if !defined(QACG_WITHOUT_NEON_BF16)
  if (has_neon_bf16()) return kNeonBf16;
#endif
  return kNeon;
}

Kind kind_of(Level level) {
#if !defined(QACG_WITHOUT_NEON_BF16)
  if (level == kNeonBf16) return {&kNeonFloat32, &kNeonBf16Bfloat16, &kNeonFloat16};
#endif
  return {&kNeonFloat32, &kNeonBfloat16, &kNeonFloat16};
}
#else
Level detect() { return kPlain; }
Kind kind_of(Level) { return {&kPlainFloat32, &kPlainBfloat16, &kPlainFloat16}; }
#endif

}  // namespace

namespace {

Level level_here() {
  static const Level detected = detect();
  return detected;
}

// The kernels of the newest instruction set of this processor; for bfloat16 those of AVX-512 where they are faster.
Choice newest(Level level, Element element) {
  const Kernels* kernels = kind_of(level).of(element);
#if defined(__x86_64__)
  if (element == Element::kBfloat16 && level == kAvx512Bf16) {
    return {measured().faster ? kernels : kind_of(kAvx512).of(element), measured().text.c_str()};
  }
#endif
  if (element == Element::kFloat16) return {kernels, "widened to float32; the newest available for float16"};
  static const std::string why = "the newest available" + amx_refusal();
  return {kernels, why.c_str()};
}

}  // namespace

Choice choose(Element element) {
  const Level detected = level_here();
  thread_local std::string message;
  const char* wish = std::getenv("QACG_CPU_CAPABILITY");
  if (!wish || !*wish) return newest(detected, element);
  const int limit = static_cast<int>(std::find(kNames, kNames + kLevels, std::string(wish)) - kNames);
  if (limit == kLevels) {
    message = std::string("QACG_CPU_CAPABILITY: expected ") + kNamesInWords + ", got '" + wish + "'";
    return {nullptr, message.c_str()};
  }
  if (limit <= detected) return {kind_of(static_cast<Level>(limit)).of(element), "set by QACG_CPU_CAPABILITY"};
  const Choice choice = newest(detected, element);
  message =
      std::string("QACG_CPU_CAPABILITY=") + wish + " is not available on this processor; used instead: " + choice.why;
  return {choice.kernels, message.c_str()};
}

// In the order of PRODUCTS in qacg_kernels/backends/cpu.py; 0 where the processor lacks the instruction.
static double product_rate(int kind) {
  double (*burst)() = nullptr;
#if defined(__x86_64__)
  if (level_here() >= kAvx512Bf16 && kind < 2) burst = kind == 0 ? fma_burst : vdpbf16ps_burst;
#if !defined(QACG_WITHOUT_AMX)
  if (level_here() == kAmx && kind == 2) burst = tile_burst;
#endif
#endif
  if (!burst) return 0.0;
  const auto begin = std::chrono::steady_clock::now();
  const double flop = burst();
  return flop / std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace qacg

// Functions for qacg_kernels/backends/cpu.py. `element` is a number of Element in problem.h. The kernels' name is null
// if `why` is an error. The caller must copy `why` before the next call on this thread.
#define QACG_EXPORTED extern "C" __attribute__((visibility("default")))

QACG_EXPORTED const char* qacg_cpu_instruction_set(int element) {
  const qacg::Kernels* kernels = qacg::choose(static_cast<qacg::Element>(element)).kernels;
  return kernels ? kernels->name : nullptr;
}

QACG_EXPORTED const char* qacg_cpu_why(int element) { return qacg::choose(static_cast<qacg::Element>(element)).why; }

// GFLOP/s of one thread on a kind of products, now. QACG_CPU_CAPABILITY has no effect.
QACG_EXPORTED double qacg_cpu_product_rate(int kind) { return qacg::product_rate(kind); }

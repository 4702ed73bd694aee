// Whether an aarch64 processor has BFMMLA, as reported by the operating system.
#pragma once

#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#endif

namespace qacg {

inline bool has_neon_bf16() {
#if defined(__APPLE__)
  int has = 0;
  size_t size = sizeof(has);
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &size, nullptr, 0) == 0 && has;
#elif defined(__linux__)
  constexpr unsigned long kBf16 = 1ul << 14;  // HWCAP2_BF16, which older headers lack
  return getauxval(AT_HWCAP2) & kBf16;
#else
  return false;
#endif
}

}  // namespace qacg

// Which kernels this processor runs, and why.
#pragma once

#include "problem.h"

namespace qacg {

struct Choice {
  const Kernels* kernels;  // null if QACG_CPU_CAPABILITY is no instruction set: `why` is then the error message
  const char* why;
};

// Chooses the kernels for an element type. QACG_CPU_CAPABILITY ("plain", "avx2", "avx512", "avx512_bf16", "amx"; on
// aarch64 "neon", "neon_bf16") names the instruction set to use if the processor has it; each call reads it again.
Choice choose(Element element);

}  // namespace qacg

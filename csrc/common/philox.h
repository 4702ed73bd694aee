// The random generator of dropout and the counter of an attention entry; qacg_kernels/call/dropout.py states both.
#pragma once

#include <stdint.h>

namespace qacg {

constexpr int kPhiloxRounds = 7;
constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
// A block has kDropoutBlock keys, and one counter serves every kDropoutGroups-th of them.
constexpr int kDropoutBlock = 128;
constexpr int kDropoutGroups = 16;

}  // namespace qacg

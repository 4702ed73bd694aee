// Whether dropout keeps an attention entry, by the rule in qacg_kernels/call/dropout.py.
#pragma once

#include "inline.h"
#include "philox.h"

namespace qacg {

constexpr uint32_t kDropoutDraws = 1u << 16;              // an entry draws 16 bits
constexpr int kDropoutSlots = kDropoutBlock / kDropoutGroups;  // entries of one counter

// The 16-bit number below which a draw drops its entry: 2^16 p, rounded to an integer below 2^16.
QACG_SHARED uint32_t drop_threshold(double dropout_p) {
  const uint32_t nearest = static_cast<uint32_t>(dropout_p * kDropoutDraws + 0.5);
  return nearest < kDropoutDraws ? nearest : kDropoutDraws - 1;
}

// The factor on kept entries, 1 / (1 - p), with p as rounded by drop_threshold().
QACG_SHARED float keep_scale(uint32_t threshold) {
  return static_cast<float>(kDropoutDraws) / static_cast<float>(kDropoutDraws - threshold);
}

struct PhiloxWords {
  uint32_t word[4];
};

// Philox-4x32 with kPhiloxRounds rounds (Salmon et al., SC 2011), fourth counter 0.
QACG_SHARED PhiloxWords philox(uint32_t c0, uint32_t c1, uint32_t c2, uint64_t seed) {
  uint32_t c3 = 0, k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(c0) * kPhiloxMultiplier0;
    const uint64_t product1 = static_cast<uint64_t>(c2) * kPhiloxMultiplier1;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(product0);
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

// Which of the eight keys of a counter are kept: bit m is set for key 128 block + 16 m + residue. `group` is
// 16 block + residue (`counter_group`).
QACG_SHARED uint32_t kept_keys(uint64_t seed, uint32_t drop_threshold, uint32_t sequence_head, uint32_t query,
                               uint32_t group) {
  const PhiloxWords draw = philox(group, query, sequence_head, seed);
  uint32_t bits = 0;
  for (int m = 0; m < kDropoutSlots; ++m) {
    const uint32_t cell = (draw.word[m / 2] >> (16 * (m % 2))) & 0xffffu;
    bits |= static_cast<uint32_t>(cell >= drop_threshold) << m;
  }
  return bits;
}

QACG_SHARED uint32_t counter_group(int64_t key) {
  return static_cast<uint32_t>(key / kDropoutBlock * kDropoutGroups + key % kDropoutGroups);
}

}  // namespace qacg

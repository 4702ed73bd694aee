// csrc/cuda/mma.h on a CPU. Fragments are laid out as the PTX ISA documents them, sections "Matrix fragments for
// mma.m16n8k16 with floating point type" and "ldmatrix"; tests/test_cuda_emulator.py checks them one element at a time.
#pragma once

#include "../../csrc/common/narrow.h"
#include "machine_emulator.h"

namespace qacg::cuda {

namespace emulator {

inline int64_t products = 0;  // so that a test knows which path a call took

// The warp's 16 x 16 times 16 x 8: with group = lane / 4 and pair = lane % 4,
//   a: register r holds columns 2 pair, 2 pair + 1 (+ 8 for r >= 2) of row group (+ 8 for odd r);
//   b: register r holds rows 2 pair, 2 pair + 1 (+ 8 for r = 1) of column group;
//   c: element e is column 2 pair + e % 2 of row group (+ 8 for e >= 2).
template <typename Scalar>
void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operand {
    float* c;
    const uint32_t* a;
    uint32_t b[2];
  } mine{c, a, {b0, b1}};
  machine().together("mma", mine, [](const auto& of) {
    ++products;
    const auto element = [](uint32_t pair, int half) {
      return widen(Scalar{static_cast<uint16_t>(pair >> (16 * half))});
    };
    float left[16][16], right[16][8], sums[16][8] = {};
    for (int lane = 0; lane < kWarp; ++lane) {
      const int group = lane / 4, pair = lane % 4;
      for (int half = 0; half < 2; ++half) {
        for (int r = 0; r < 4; ++r) {
          left[group + 8 * (r % 2)][2 * pair + half + 8 * (r / 2)] = element(of(lane).a[r], half);
        }
        for (int r = 0; r < 2; ++r) right[2 * pair + half + 8 * r][group] = element(of(lane).b[r], half);
      }
    }
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < 16; ++k) {
        for (int j = 0; j < 8; ++j) sums[i][j] += left[i][k] * right[k][j];
      }
    }
    for (int lane = 0; lane < kWarp; ++lane) {
      for (int e = 0; e < 4; ++e) of(lane).c[e] += sums[lane / 4 + 8 * (e / 2)][2 * (lane % 4) + e % 2];
    }
  });
}

// The bytes at an address of shared memory, which counts from the block's first; a place of no use if it is a bad one.
inline char* shared_bytes(uint32_t address, uint32_t bytes, const char* what) {
  static char nowhere[16];
  Machine& m = machine();
  if (address % bytes == 0 && address + bytes <= m.shared_bytes) return m.shared + address;
  m.fail(what);
  return nowhere;
}

// Matrix r: thread `lane` receives elements 2 (lane % 4) and the next of row lane / 4, or of column lane / 4 if
// transposed.
inline void load_matrices(uint32_t (&to)[4], uint32_t row, bool transposed) {
  struct Operand {
    const uint16_t* row;
    uint32_t* to;
  } mine{reinterpret_cast<const uint16_t*>(shared_bytes(row, 16, "ldmatrix: a bad address in shared memory")), to};
  machine().together(transposed ? "ldmatrix.trans" : "ldmatrix", mine, [transposed](const auto& of) {
    for (int lane = 0; lane < kWarp; ++lane) {
      for (int r = 0; r < 4; ++r) {
        uint32_t pair = 0;
        for (int half = 0; half < 2; ++half) {
          const int along = 2 * (lane % 4) + half, across = lane / 4;
          const uint16_t element =
              transposed ? of(8 * r + along).row[across] : of(8 * r + across).row[along];
          pair |= static_cast<uint32_t>(element) << (16 * half);
        }
        of(lane).to[r] = pair;
      }
    }
  });
}

}  // namespace emulator

inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Bfloat16) {
  emulator::multiply_add<Bfloat16>(c, a, b0, b1);
}

inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Float16) {
  emulator::multiply_add<Float16>(c, a, b0, b1);
}

inline void load_matrices(uint32_t (&to)[4], uint32_t row) { emulator::load_matrices(to, row, false); }

inline void load_matrices_transposed(uint32_t (&to)[4], uint32_t row) { emulator::load_matrices(to, row, true); }

inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const char*>(p) - emulator::machine().shared);
}

inline Bytes16 load_bytes(uint32_t from) {
  Bytes16 x;
  memcpy(&x, emulator::shared_bytes(from, 16, "a load from a bad address in shared memory"), sizeof(x));
  return x;
}

inline void store_word(uint32_t to, uint32_t word) {
  memcpy(emulator::shared_bytes(to, 4, "a store to a bad address in shared memory"), &word, sizeof(word));
}

inline void copy_async(uint32_t to, const void* from, bool inside) {
  emulator::Machine& m = emulator::machine();
  char* target = emulator::shared_bytes(to, 16, "cp.async: a bad address in shared memory");
  if (inside && reinterpret_cast<uintptr_t>(from) % 16) m.fail("cp.async: a source off 16 bytes");
  const emulator::AsyncCopy copy{target, inside ? from : nullptr};
  if (m.eager_copies) return emulator::perform(copy);
  // Until the copy is waited for, its target holds nothing that may be used.
  memset(target, 0xff, 16);
  m.current->open.push_back(copy);
}

inline void commit_copies() {
  emulator::Fiber& fiber = *emulator::machine().current;
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}

template <int kGroups>
void wait_for_copies() {
  auto& groups = emulator::machine().current->groups;
  while (static_cast<int>(groups.size()) > kGroups) {
    for (const emulator::AsyncCopy& copy : groups.front()) emulator::perform(copy);
    groups.erase(groups.begin());
  }
}

}  // namespace qacg::cuda

extern "C" inline __attribute__((used)) int64_t qacg_emulator_products() { return qacg::cuda::emulator::products; }

// csrc/cuda/mma.h on a CPU. Fragments are laid out as the PTX ISA documents them, sections "Matrix fragments for
// mma.m16n8k16 with floating point type" and "ldmatrix".
#pragma once

#include "common/half_types.h"
#include "cuda_intrinsics_emulator.h"
#include "tensor_core_emulator.h"

namespace qacg::cuda {

namespace emulator {

// The warp's 16 x 16 times 16 x 8: with group = lane / 4 and pair = lane % 4,
//   a: register r holds columns 2 pair, 2 pair + 1 (+ 8 for r >= 2) of row group (+ 8 for odd r);
//   b: register r holds rows 2 pair, 2 pair + 1 (+ 8 for r = 1) of column group;
//   c: element e is column 2 pair + e % 2 of row group (+ 8 for e >= 2).
struct Product {
  float* c;
  const uint32_t* a;
  uint32_t b[2];
};

template <typename Scalar>
void multiply_add(const Lanes<Product>& of) {
  const auto element = [](uint32_t two, int half) { return widen(Scalar{static_cast<uint16_t>(two >> (16 * half))}); };
  float left[16][16], right[16][8], sums[16][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const int group = lane / 4, pair = lane % 4;
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < 4; ++r) {
        left[group + 8 * (r % 2)][2 * pair + half + 8 * (r / 2)] = element(of(lane).a[r], half);
      }
      for (int r = 0; r < 2; ++r) right[2 * pair + half + 8 * r][group] = element(of(lane).b[r], half);
    }
    for (int e = 0; e < 4; ++e) sums[group + 8 * (e / 2)][2 * pair + e % 2] = of(lane).c[e];
  }
  add_product(sums, left, right, machine().truncates);
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int e = 0; e < 4; ++e) of(lane).c[e] = sums[lane / 4 + 8 * (e / 2)][2 * (lane % 4) + e % 2];
  }
}

// The bytes at an address in the block's shared memory. An invalid address fails the launch and returns a dummy.
inline char* shared_bytes(uint32_t address, uint32_t bytes, const char* what) {
  static char nowhere[16];
  Machine& m = machine();
  if (address % bytes == 0 && address + bytes <= m.shared_bytes) return m.shared + address;
  m.fail(what);
  return nowhere;
}

// Matrix r: thread `lane` receives elements 2 (lane % 4) and the next of row lane / 4, or of column lane / 4 if
// transposed. That thread counts as their reader, whichever thread names the row. Although all threads meet at the
// instruction, it orders no memory: PTX defines it as a weak operation, so stores of others may arrive later.
struct MatrixRow {
  const uint16_t* row;
  uint32_t* to;
};

template <bool kTransposed>
void load_matrices(const Lanes<MatrixRow>& of) {
  for (int lane = 0; lane < kWarp; ++lane) {
    const int thread = machine().current->index / kWarp * kWarp + lane;
    for (int r = 0; r < 4; ++r) {
      uint32_t pair = 0;
      for (int half = 0; half < 2; ++half) {
        const int along = 2 * (lane % 4) + half, across = lane / 4;
        const uint16_t* from = kTransposed ? of(8 * r + along).row + across : of(8 * r + across).row + along;
        pair |= static_cast<uint32_t>(*from) << (16 * half);
      }
      of(lane).to[r] = pair;
    }
  }
}

inline MatrixRow matrix_row(uint32_t (&to)[4], uint32_t row) {
  const char* bytes = shared_bytes(row, 16, "ldmatrix: a bad address in shared memory");
  return {reinterpret_cast<const uint16_t*>(bytes), to};
}

inline Bytes16 load_bytes(uint32_t from) {
  Bytes16 x;
  const char* bytes = shared_bytes(from, 16, "a load from a bad address in shared memory");
  memcpy(&x, bytes, sizeof(x));
  return x;
}

inline void store_word(uint32_t to, uint32_t word) {
  char* bytes = shared_bytes(to, 4, "a store to a bad address in shared memory");
  memcpy(bytes, &word, sizeof(word));
}

inline void perform(const AsyncCopy& copy) {
  if (copy.from) {
    memcpy(copy.to, copy.from, 16);
  } else {
    memset(copy.to, 0, 16);
  }
}

inline void begin_copy(uint32_t to, const void* from, bool inside) {
  Machine& m = machine();
  char* target = shared_bytes(to, 16, "cp.async: a bad address in shared memory");
  if (inside && reinterpret_cast<uintptr_t>(from) % 16) m.fail("cp.async: a source off 16 bytes");
  const AsyncCopy copy{target, inside ? from : nullptr, m.copies_at_once()};
  if (copy.done) {
    perform(copy);
  } else {
    // NaN until the copy is waited for.
    memset(target, 0xff, 16);
  }
  m.current->open.push_back(copy);
}

inline void end_copies(int groups_left) {
  Fiber& fiber = *machine().current;
  while (static_cast<int>(fiber.groups.size()) > groups_left) {
    for (const AsyncCopy& copy : fiber.groups.front()) {
      if (!copy.done) perform(copy);
    }
    fiber.groups.erase(fiber.groups.begin());
  }
}

}  // namespace emulator

inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Bfloat16) {
  emulator::machine().together("mma", emulator::Product{c, a, {b0, b1}}, emulator::multiply_add<Bfloat16>);
}

inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Float16) {
  emulator::machine().together("mma", emulator::Product{c, a, {b0, b1}}, emulator::multiply_add<Float16>);
}

inline void load_matrices(uint32_t (&to)[4], uint32_t row) {
  emulator::machine().together("ldmatrix", emulator::matrix_row(to, row), emulator::load_matrices<false>);
}

inline void load_matrices_transposed(uint32_t (&to)[4], uint32_t row) {
  emulator::machine().together("ldmatrix.trans", emulator::matrix_row(to, row), emulator::load_matrices<true>);
}

inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const char*>(p) - emulator::machine().shared);
}

inline Bytes16 load_bytes(uint32_t from) { return emulator::load_bytes(from); }

inline void store_word(uint32_t to, uint32_t word) { emulator::store_word(to, word); }

inline void copy_async(uint32_t to, const void* from, bool inside) { emulator::begin_copy(to, from, inside); }

inline void commit_copies() {
  emulator::Fiber& fiber = *emulator::machine().current;
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}

template <int kGroups>
void wait_for_copies() {
  emulator::end_copies(kGroups);
}

}  // namespace qacg::cuda

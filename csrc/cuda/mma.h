// The sm_80 instructions for tensor cores. Fragments are distributed over threads as the PTX ISA specifies
// (mma.m16n8k16 and ldmatrix for .b16); mma_tile.h describes their use. Addresses in shared memory are 32-bit integers:
// a kernel keeps a dozen of them, and C++ pointers would take twice the registers.
#pragma once

#include "../common/half_types.h"
#include "cuda_intrinsics.h"

namespace qacg::cuda {

struct alignas(16) Bytes16 {
  uint32_t word[4];
};

}  // namespace qacg::cuda

#if defined(QACG_EMULATED)
#include "mma_emulator.h"
#else

namespace qacg::cuda {

QACG_DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// c += a b for 16 x 16 by 16 x 8, by a warp; a is row-major, b column-major, c float32.
QACG_DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

QACG_DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Float16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8 x 8 matrices of 16-bit elements: thread t passes the address of row t % 8 of matrix t / 8, 16 bytes in
// shared memory.
QACG_DEVICE void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

QACG_DEVICE void load_matrices_transposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

QACG_DEVICE Bytes16 load_bytes(uint32_t from) {
  Bytes16 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
               : "r"(from)
               : "memory");
  return x;
}

QACG_DEVICE void store_word(uint32_t to, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

// Starts a copy of 16 bytes from device to shared memory, or zeros if not `inside`. It completes before a wait for its
// group returns. `from` is always an address inside the tensor.
QACG_DEVICE void copy_async(uint32_t to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

QACG_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `kGroups` of this thread's committed groups are under way.
template <int kGroups>
QACG_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace qacg::cuda

#endif

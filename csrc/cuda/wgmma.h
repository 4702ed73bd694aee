// The instructions of sm_90a that multiply matrices by four warps at a time, a warp group, from shared memory and
// asynchronously. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". tests/cuda_emulator has the same names
// for a CPU.
//
// A group's 64 rows are four strips of 16, one for each warp, with the fragments of mma_tile.h. Between a product and
// the wait that covers it, no thread may access the product's sums, its weights in registers, or its shared memory. A
// fence separates writes to registers from a product that reads them. Fences take the sums and weights as arguments,
// and waits take the sums that are used next, so that the compiler moves no access across a fence or wait.
#pragma once

#include "mma.h"

// Matrix descriptors: where a product's matrix lies in shared memory (PTX ISA, "Asynchronous Warpgroup Level Matrix
// Shared Memory Layout"). All matrices here have the swizzle of 128 bytes: an atom is eight rows of 128 bytes, starts
// at a multiple of 1,024, and the 16-byte chunk c of row r lies in place c ^ r.
namespace qacg::cuda {

constexpr int kAtomBytes = 1024;

// Rows lie along the sum if the product sums over the elements of a row, and across the sum if it sums over rows.
// `rows_apart` is the distance in bytes from an atom to that of the next eight rows. If rows lie across the sum, more
// than 64 columns are several atoms, `columns_apart` bytes apart; otherwise `columns_apart` is not used.
QACG_DEVICE uint64_t matrix_descriptor(uint32_t address, uint32_t columns_apart, uint32_t rows_apart) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | static_cast<uint64_t>(rows_apart >> 4) << 32 | static_cast<uint64_t>(columns_apart >> 4) << 16 |
         (address & 0x3ffff) >> 4;
}

// The matrix `bytes` further: along its rows within an atom, or by whole atoms.
QACG_DEVICE uint64_t advanced(uint64_t descriptor, uint32_t bytes) { return descriptor + (bytes >> 4); }

}  // namespace qacg::cuda

// On other GPUs the kernels with these instructions have an empty body.
#if defined(QACG_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define QACG_HAS_WGMMA
#endif

#if defined(QACG_EMULATED)
#include "wgmma_emulator.h"
#else

namespace qacg::cuda {

// Makes this thread's writes to shared memory, including completed cp.async, visible to products after the next
// barrier.
QACG_DEVICE void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Keeps the compiler from moving accesses to a register across this point.
QACG_DEVICE void keep_in_place(float& x) { asm volatile("" : "+f"(x)); }
QACG_DEVICE void keep_in_place(uint32_t& x) { asm volatile("" : "+r"(x)); }
template <typename Register, int kTiles>
QACG_DEVICE void keep_in_place(Register (&registers)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) keep_in_place(registers[t][e]);
  }
}

template <typename... Registers>
QACG_DEVICE void fence_registers(Registers&... registers) {
  (keep_in_place(registers), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Makes a group of the products since the last commit.
QACG_DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most kGroups of this thread's groups of products are under way.
template <int kGroups, typename... Sums>
QACG_DEVICE void wait_for_products(Sums&... sums) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
  (keep_in_place(sums), ...);
}

// The operands of an instruction for 64 and 128 columns: the thread's sums, and the names of the operands that follow.
#define QACG_SUMS_8(constraint, c, t)                                                                          \
  constraint(c[t][0]), constraint(c[t][1]), constraint(c[t][2]), constraint(c[t][3]), constraint(c[t + 1][0]), \
      constraint(c[t + 1][1]), constraint(c[t + 1][2]), constraint(c[t + 1][3])
#define QACG_SUMS_32(constraint, c, t)                                                                 \
  QACG_SUMS_8(constraint, c, t), QACG_SUMS_8(constraint, c, t + 2), QACG_SUMS_8(constraint, c, t + 4), \
      QACG_SUMS_8(constraint, c, t + 6)
#define QACG_SUMS_64(constraint) QACG_SUMS_32(constraint, c, 0)
#define QACG_SUMS_128(constraint) QACG_SUMS_32(constraint, c, 0), QACG_SUMS_32(constraint, c, 8)
#define QACG_NAMES_64                                                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define QACG_NAMES_128                                                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, " \
  "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
  "%62, %63"
#define QACG_MATRICES_64 "%32, %33"
#define QACG_MATRICES_128 "%64, %65"
#define QACG_WEIGHTS_64 "{%32, %33, %34, %35}, %36"
#define QACG_WEIGHTS_128 "{%64, %65, %66, %67}, %68"

// For one type and width: c = left right and c += left right, of matrices in shared memory whose rows lie along the
// sum; and c += weights right, with the weights in registers as mma's left operand, and rows of `right` across the sum.
// The numbers at the end state whether c is added, the signs of both operands, and whether each operand in shared
// memory is transposed.
#define QACG_PRODUCTS(Scalar, type, columns)                                                                        \
  QACG_DEVICE void multiply(float (&c)[columns / 8][4], uint64_t left, uint64_t right, Scalar) {                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" QACG_NAMES_##columns    \
                 "}, " QACG_MATRICES_##columns ", 0, 1, 1, 0, 0;"                                                   \
                 : QACG_SUMS_##columns("=f")                                                                        \
                 : "l"(left), "l"(right)                                                                            \
                 : "memory");                                                                                       \
  }                                                                                                                 \
  QACG_DEVICE void multiply_add(float (&c)[columns / 8][4], uint64_t left, uint64_t right, Scalar) {                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" QACG_NAMES_##columns    \
                 "}, " QACG_MATRICES_##columns ", 1, 1, 1, 0, 0;"                                                   \
                 : QACG_SUMS_##columns("+f")                                                                        \
                 : "l"(left), "l"(right)                                                                            \
                 : "memory");                                                                                       \
  }                                                                                                                 \
  QACG_DEVICE void multiply_add(float (&c)[columns / 8][4], const uint32_t (&weights)[4], uint64_t right, Scalar) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" QACG_NAMES_##columns    \
                 "}, " QACG_WEIGHTS_##columns ", 1, 1, 1, 1;"                                                       \
                 : QACG_SUMS_##columns("+f")                                                                        \
                 : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "l"(right)                   \
                 : "memory");                                                                                       \
  }

QACG_PRODUCTS(Bfloat16, "bf16", 64)
QACG_PRODUCTS(Bfloat16, "bf16", 128)
QACG_PRODUCTS(Float16, "f16", 64)
QACG_PRODUCTS(Float16, "f16", 128)

}  // namespace qacg::cuda

#endif

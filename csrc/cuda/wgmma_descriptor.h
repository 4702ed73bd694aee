// How a product of a warp group is told where a matrix lies in shared memory: PTX ISA, "Asynchronous Warpgroup Level
// Matrix Shared Memory Layout", matrix descriptor. Here all have the swizzle of 128 bytes: an atom is eight rows of 128
// bytes, one behind the other from a multiple of 1,024 on, and the 16-byte chunk c of row r lies in place c ^ r.
#pragma once

#include <stdint.h>

#include "cuda_intrinsics.h"

namespace qacg::cuda {

constexpr int kAtomBytes = 1024;

// `rows_apart` bytes lie between an atom and that of the next eight rows. Where the rows lie across the sum, more than
// 64 columns are several atoms side by side, `columns_apart` bytes from one another; else that is not used.
QACG_DEVICE uint64_t matrix_descriptor(uint32_t address, uint32_t columns_apart, uint32_t rows_apart) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | static_cast<uint64_t>(rows_apart >> 4) << 32 | static_cast<uint64_t>(columns_apart >> 4) << 16 |
         (address & 0x3ffff) >> 4;
}

// The same matrix, some bytes further on: along its rows within an atom, or by whole atoms.
QACG_DEVICE uint64_t moved(uint64_t descriptor, uint32_t bytes) { return descriptor + (bytes >> 4); }

}  // namespace qacg::cuda

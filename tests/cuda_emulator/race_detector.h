// Finds accesses to a block's shared memory that no barrier orders: see README.md for the rules.
//
// The emulator tells it which thread runs, which barriers were met and what its own instructions read and write. All
// other accesses come from the compiler: kernels built with -fsanitize=thread call the hooks in race_detector.cpp.
// Without QACG_RACES nothing is looked at.
#pragma once

#include <stdint.h>

// For what touches shared memory on the emulator's own account: instead of hooks, it calls the functions below.
#define QACG_UNHOOKED __attribute__((noinline, no_sanitize("thread")))
// For the functions that kernels call, so that a place in the code is one in the kernel, not in the emulator.
#define QACG_IN_PLACE __attribute__((always_inline)) inline

namespace qacg::cuda::emulator::races {

using Place = const void*;  // an address in the code

#if defined(QACG_RACES)

// Where the caller is.
Place place();

// A block begins, with this shared memory; then its end, after which nothing counts as an access.
void begin_block(const void* kernel, int64_t block, const char* shared, int64_t bytes, int threads);
void end_block();

// From here on, accesses that are reported by hooks are this thread's.
void run_thread(int thread);

// All threads of the block, or of a warp, have met: what they did before happened before what they do from now on.
void block_met();
void warp_met(int warp);

void read(int thread, const void* from, int64_t bytes, Place where);
void write(int thread, const void* to, int64_t bytes, Place where);

// An asynchronous copy writes at any time between these two.
void begin_copy(int thread, const void* to, int64_t bytes, Place where);
void end_copy(int thread, const void* to, int64_t bytes, Place where);

// What this thread has written so far may be read by the tensor cores behind the next barrier of the block.
void show_to_products(int thread);

// A product of a warp group, whose first thread is given, reads at any time between its issue and the waits of all four
// warps, of each of which the first thread is given.
void begin_product(int thread, const void* from, int64_t bytes, Place where);
void end_product(int thread, const void* from, int64_t bytes, Place where);

// The first race of the block in words, or null.
const char* found();

#else

inline Place place() { return nullptr; }
inline void begin_block(const void*, int64_t, const char*, int64_t, int) {}
inline void end_block() {}
inline void run_thread(int) {}
inline void block_met() {}
inline void warp_met(int) {}
inline void read(int, const void*, int64_t, Place) {}
inline void write(int, const void*, int64_t, Place) {}
inline void begin_copy(int, const void*, int64_t, Place) {}
inline void end_copy(int, const void*, int64_t, Place) {}
inline void show_to_products(int) {}
inline void begin_product(int, const void*, int64_t, Place) {}
inline void end_product(int, const void*, int64_t, Place) {}
inline const char* found() { return nullptr; }

#endif

}  // namespace qacg::cuda::emulator::races

// Finds accesses to a block's shared memory that no barrier orders: see README.md for the rules.
//
// The emulator reports the running thread, the barriers, and the accesses of its own instructions. Kernels built with
// -fsanitize=thread report all other accesses by the hooks in race_detector.cpp. Without QACG_RACES nothing is checked.
#pragma once

#include <stdint.h>

// For emulator functions that access shared memory: they call the functions below instead of the hooks.
#define QACG_UNHOOKED __attribute__((noinline, no_sanitize("thread")))
// For functions that kernels call: place() is then an address in the kernel, not in the emulator.
#define QACG_IN_PLACE __attribute__((always_inline)) inline

namespace qacg::cuda::emulator::races {

using Place = const void*;  // an address in the code

#if defined(QACG_RACES)

// The address of the caller.
Place place();

// Accesses are checked between these two calls, for a block with this shared memory.
void begin_block(const void* kernel, int64_t block, const char* shared, int64_t bytes, int threads);
void end_block();

// Sets the thread of the accesses that hooks report.
void run_thread(int thread);

// All threads of the block, or of a warp, are at a barrier, which orders their earlier and later accesses.
void block_met();
void warp_met(int warp);

void read(int thread, const void* from, int64_t bytes, Place where);
void write(int thread, const void* to, int64_t bytes, Place where);

// An asynchronous copy writes at any time between these two.
void begin_copy(int thread, const void* to, int64_t bytes, Place where);
void end_copy(int thread, const void* to, int64_t bytes, Place where);

// The report of the block's first race, or null.
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
inline const char* found() { return nullptr; }

#endif

}  // namespace qacg::cuda::emulator::races

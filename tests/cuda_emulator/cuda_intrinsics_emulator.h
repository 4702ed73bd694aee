// csrc/cuda/cuda_intrinsics.h on a CPU: the threads of a block are fibers on one core, and a barrier switches between
// them.
//
// A seed (QACG_EMULATOR_SEED) decides what a GPU does not specify: the order of a block's warps; how far one runs ahead
// of the others; whether a warp's lanes run in ascending or descending order; and for each asynchronous copy whether it
// happens at its issue or at its wait. With seed 0 lanes ascend and copies happen late, with seed 1 they descend and
// happen early; with both, warps run until they wait. Shared memory starts as NaN and ends in a guard that no kernel
// may write. A thread must wait for all its copies, which otherwise may overwrite what is stored after them.
#pragma once

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tensor_core_emulator.h"

#define QACG_DEVICE inline
#define QACG_KERNEL(threads, blocks_per_multiprocessor) void
#define QACG_PARAMETER const

namespace qacg::cuda {

constexpr int kWarp = 32;

namespace emulator {

constexpr size_t kStackBytes = 256 * 1024;
constexpr int64_t kGuardBytes = 256, kSharedAlignment = 256;
// Shared memory of a block on sm_80.

enum class State { kReady, kInWarp, kInBlock, kDone };

struct AsyncCopy {
  void* to;
  const void* from;  // null: fill with zeros
  bool done;
};

struct Fiber {
  State state = State::kReady;
  jmp_buf resume;
  bool started = false;
  int index = 0;
  std::vector<std::vector<AsyncCopy>> groups;  // committed, oldest first
  std::vector<AsyncCopy> open;
};

// The threads that have arrived at an instruction that a warp runs together.
struct Warp {
  const char* operation = nullptr;
  void* operands[kWarp];
  int arrived = 0;
};

// The operands of an instruction that threads run together.
template <typename Operand>
class Lanes {
 public:
  explicit Lanes(void* const* operands) : operands_(operands) {}
  Operand& operator()(int lane) const { return *static_cast<Operand*>(operands_[lane]); }

 private:
  void* const* operands_;
};

// A stack that is kept from launch to launch, with an unreadable page below it.
class Stack {
 public:
  Stack() {
    memory_ = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED || mprotect(memory_, 4096, PROT_NONE) != 0) abort();
  }
  ~Stack() { munmap(memory_, kStackBytes); }
  Stack(const Stack&) = delete;
  void* base() const { return memory_; }

 private:
  void* memory_;
};

class Machine {
 public:
  Fiber* current = nullptr;
  int64_t block = 0;
  char* shared = nullptr;
  int64_t shared_bytes = 0;

  // Runs one block of a kernel; returns null or an error message.
  const char* run(int threads, int64_t bytes, uint64_t seed, const std::function<void()>& body) {
    body_ = &body;
    error_ = nullptr;
    shared_bytes = bytes;
    memory_.assign(bytes + kGuardBytes + kSharedAlignment, static_cast<char>(0xff));
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory_.data());
    shared = memory_.data() + (kSharedAlignment - address % kSharedAlignment) % kSharedAlignment;
    fibers_.assign(threads, Fiber{});
    warps_.assign((threads + kWarp - 1) / kWarp, Warp{});
    while (static_cast<int>(stacks_.size()) < threads) stacks_.push_back(std::make_unique<Stack>());
    for (int t = 0; t < threads; ++t) fibers_[t].index = t;
    seed_ = seed;
    draw_ = seed + static_cast<uint64_t>(block) * 0x9e3779b97f4a7c15u;
    truncates = emulator::truncates();
    std::vector<int> order(warps_.size());
    for (size_t w = 0; w < order.size(); ++w) order[w] = static_cast<int>(w);

    while (!error_) {
      for (size_t w = order.size(); w > 1; --w) std::swap(order[w - 1], order[random(w)]);
      // Warps that run ahead of one another by a random number of steps, or until they wait.
      for (const int w : order) run_warp(w, seed < 2 || random(4) == 0 ? kAllSteps : random(16));
      int done = 0, waiting = 0, ready = 0;
      for (const Fiber& fiber : fibers_) {
        done += fiber.state == State::kDone;
        waiting += fiber.state == State::kInBlock;
        ready += fiber.state == State::kReady;
      }
      if (ready) continue;
      if (done == threads) break;
      if (done + waiting < threads) fail("threads of a warp wait for others that left or wait elsewhere");
      if (waiting && done) fail("some threads of a block left while others wait at a barrier");
      for (Fiber& fiber : fibers_) {
        if (fiber.state == State::kInBlock) fiber.state = State::kReady;
      }
    }
    for (int64_t b = 0; b < kGuardBytes && !error_; ++b) {
      if (shared[bytes + b] != static_cast<char>(0xff)) fail("a kernel wrote beyond its shared memory");
    }
    return error_;
  }

  void wait_for_block() { leave(State::kInBlock); }

  // Gathers the operands of a warp's 32 threads; the last one does the work for all.
  template <typename Operand>
  void together(const char* operation, Operand operand, void (*work)(const Lanes<Operand>&)) {
    Warp& warp = warps_[current->index / kWarp];
    if (warp.arrived == 0) warp.operation = operation;
    if (strcmp(warp.operation, operation) != 0) fail("threads of a warp run different instructions");
    warp.operands[current->index % kWarp] = &operand;
    if (++warp.arrived < kWarp) return leave(State::kInWarp);
    work(Lanes<Operand>(warp.operands));
    warp.arrived = 0;
    const int first = current->index / kWarp * kWarp;
    for (int thread = first; thread < first + kWarp; ++thread) {
      if (fibers_[thread].state == State::kInWarp) fibers_[thread].state = State::kReady;
    }
  }

  void fail(const char* what) {
    if (!error_) error_ = what;
  }

  // Whether a copy that is issued now happens now.
  bool copies_at_once() { return drawn(false, true); }

  bool truncates = false;  // whether sums are truncated as by tensor cores, see tensor_core_emulator.h

 private:
  static constexpr size_t kAllSteps = ~size_t{0};

  size_t random(size_t below) {
    draw_ = draw_ * 6364136223846793005u + 1442695040888963407u;
    return (draw_ >> 33) % below;
  }

  // The fixed choices of seeds 0 and 1; from 2 on, a random one.
  bool drawn(bool with_0, bool with_1) { return seed_ == 0 ? with_0 : seed_ == 1 ? with_1 : random(2) == 1; }

  // Runs a warp's threads up to the next instruction that they run together, `steps` times or until all wait.
  void run_warp(int warp, size_t steps) {
    const size_t first = static_cast<size_t>(warp) * kWarp, lanes = std::min<size_t>(kWarp, fibers_.size() - first);
    for (bool moved = true; moved && steps > 0 && !error_; --steps) {
      moved = false;
      const bool descending = drawn(false, true);
      for (size_t n = 0; n < lanes && !error_; ++n) {
        Fiber& fiber = fibers_[first + (descending ? lanes - 1 - n : n)];
        if (fiber.state != State::kReady) continue;
        moved = true;
        enter(fiber);
      }
    }
  }

  void enter(Fiber& fiber) {
    current = &fiber;
    if (_setjmp(scheduler_)) return;
    if (fiber.started) _longjmp(fiber.resume, 1);
    fiber.started = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks_[fiber.index]->base();
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    running_ = this;
    makecontext(&context, &Machine::start, 0);
    setcontext(&context);
  }

  static void start() {
    Machine& machine = *running_;
    (*machine.body_)();
    for (const auto& group : machine.current->groups) {
      if (!group.empty()) machine.fail("a thread left before its copies had arrived");
    }
    machine.leave(State::kDone);
  }

  void leave(State state) {
    current->state = state;
    if (_setjmp(current->resume) == 0) _longjmp(scheduler_, 1);
  }

  static inline Machine* running_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  const char* error_ = nullptr;
  uint64_t seed_ = 0, draw_ = 0;
  jmp_buf scheduler_;
  std::vector<char> memory_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<std::unique_ptr<Stack>> stacks_;
};

inline Machine& machine() {
  static Machine one;
  return one;
}

}  // namespace emulator

inline int thread_index() { return emulator::machine().current->index; }
inline int64_t block_index() { return emulator::machine().block; }
inline void synchronise_block() { emulator::machine().wait_for_block(); }
inline char* shared_memory() { return emulator::machine().shared; }

template <typename Word>
Word opaque(Word x) {
  return x;
}

inline void synchronise_warp() {
  struct Nothing {};
  emulator::machine().together<Nothing>("syncwarp", {}, [](const emulator::Lanes<Nothing>&) {});
}

inline float shuffle_xor(float x, int lanes) {
  struct Operand {
    float value;
    float* result;
    int lanes;
  };
  float result = 0;
  emulator::machine().together<Operand>("shuffle", {x, &result, lanes}, [](const emulator::Lanes<Operand>& of) {
    for (int lane = 0; lane < kWarp; ++lane) *of(lane).result = of(lane ^ of(lane).lanes).value;
  });
  return result;
}

inline bool all_of_warp(bool x) {
  struct Operand {
    bool value;
    bool* result;
  };
  bool result = false;
  emulator::machine().together<Operand>("vote", {x, &result}, [](const emulator::Lanes<Operand>& of) {
    bool all = true;
    for (int lane = 0; lane < kWarp; ++lane) all = all && of(lane).value;
    for (int lane = 0; lane < kWarp; ++lane) *of(lane).result = all;
  });
  return result;
}

constexpr int kCompiledVersion = 0;
inline int driver_version() { return 0; }

template <auto kernel, typename Shape, typename... Parameters>
const char* launch(int64_t blocks, void* /*stream*/, const Parameters&... parameters) {
  emulator::Machine& machine = emulator::machine();
  const char* value = getenv("QACG_EMULATOR_SEED");
  const uint64_t seed = value ? strtoull(value, nullptr, 10) : 0;
  for (int64_t block = 0; block < blocks; ++block) {
    machine.block = block;
    const char* error = machine.run(Shape::kThreads, Shape::kShared, seed, [&] { kernel(parameters...); });
    if (error) return error;
  }
  return nullptr;
}

}  // namespace qacg::cuda

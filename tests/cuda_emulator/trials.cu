// Kernels that test the emulator: the tensor cores' instructions on their own, and kernels with one mistake each.
#include "../../csrc/cuda/mma.h"

namespace qacg::cuda {
namespace {

struct Numbers {
  const uint32_t* in;
  uint32_t* out;
};

// in: of each lane four registers of a, two of b; out: the bits of its four c, from zero.
void products(const Numbers n) {
  const uint32_t* mine = n.in + 6 * thread_index();
  const uint32_t a[4] = {mine[0], mine[1], mine[2], mine[3]};
  float c[4] = {};
  multiply_add(c, a, mine[4], mine[5], Float16{});
  memcpy(n.out + 4 * thread_index(), c, sizeof(c));
}

// in: 32 rows of 8 elements, 16 bytes each; out: each lane's four registers.
template <bool kTransposed>
void matrices(const Numbers n) {
  memcpy(shared_memory() + 16 * thread_index(), n.in + 4 * thread_index(), 16);
  synchronise_warp();
  uint32_t to[4];
  const uint32_t row = shared_address(shared_memory()) + 16 * thread_index();
  kTransposed ? load_matrices_transposed(to, row) : load_matrices(to, row);
  memcpy(n.out + 4 * thread_index(), to, sizeof(to));
}

void unwritten(const Numbers n) { memcpy(n.out + thread_index(), shared_memory() + 4 * thread_index(), 4); }

void copy_without_a_wait(const Numbers n) {
  copy_async(16 * thread_index(), n.in + 4 * thread_index(), true);
  commit_copies();
  memcpy(n.out + thread_index(), shared_memory() + 16 * thread_index(), 4);
}

void copy_with_a_wait(const Numbers n) {
  copy_async(16 * thread_index(), n.in + 4 * thread_index(), thread_index() % 2 == 0);
  commit_copies();
  wait_for_copies<0>();
  memcpy(n.out + thread_index(), shared_memory() + 16 * thread_index(), 4);
}

// Each warp writes a word that the next warp reads.
template <bool kBarrier>
void neighbours(const Numbers n) {
  const int warp = thread_index() / kWarp, warps = 4;
  if (thread_index() % kWarp == 0) store_word(4 * warp, n.in[warp]);
  synchronise_warp();
  if (kBarrier) synchronise_block();
  if (thread_index() % kWarp == 0) memcpy(n.out + warp, shared_memory() + 4 * ((warp + 1) % warps), 4);
}

void leaving_before_a_barrier(const Numbers) {
  if (thread_index() < 64) synchronise_block();
}

void leaving_before_a_shuffle(const Numbers) {
  if (thread_index() % kWarp < 16) shuffle_xor(0.0f, 1);
}

void different_instructions(const Numbers) {
  if (thread_index() % kWarp < 16) {
    shuffle_xor(0.0f, 1);
  } else {
    synchronise_warp();
  }
}

void a_byte_too_far(const Numbers) {
  if (thread_index() == 0) shared_memory()[4096] = 1;
}

void a_bad_store(const Numbers) { store_word(4096, 0); }
void a_store_off_four_bytes(const Numbers) { store_word(2, 0); }

void a_bad_row(const Numbers) {
  uint32_t to[4];
  load_matrices(to, 8);
}

void a_source_off_16_bytes(const Numbers n) { copy_async(0, n.in + 1, true); }

struct Trial {
  const char* name;
  void (*kernel)(const Numbers);
  int threads;
  int64_t shared_bytes;
};

constexpr Trial kTrials[] = {
    {"products", products, 32, 0},
    {"matrices", matrices<false>, 32, 512},
    {"matrices transposed", matrices<true>, 32, 512},
    {"unwritten", unwritten, 32, 4096},
    {"copy without a wait", copy_without_a_wait, 32, 4096},
    {"copy with a wait", copy_with_a_wait, 32, 4096},
    {"neighbours", neighbours<true>, 128, 4096},
    {"neighbours without a barrier", neighbours<false>, 128, 4096},
    {"leaving before a barrier", leaving_before_a_barrier, 128, 4096},
    {"leaving before a shuffle", leaving_before_a_shuffle, 128, 4096},
    {"different instructions", different_instructions, 128, 4096},
    {"a byte too far", a_byte_too_far, 128, 4096},
    {"a bad store", a_bad_store, 128, 4096},
    {"a store off four bytes", a_store_off_four_bytes, 128, 4096},
    {"a bad row", a_bad_row, 128, 4096},
    {"a source off 16 bytes", a_source_off_16_bytes, 128, 4096},
    {"too much shared memory", unwritten, 32, 1 << 20},
};

}  // namespace

// Runs a trial; null, or what the emulator found wrong.
extern "C" const char* run_trial(const char* name, const uint32_t* in, uint32_t* out) {
  for (const Trial& trial : kTrials) {
    if (strcmp(trial.name, name) == 0) {
      return launch(trial.kernel, 1, trial.threads, trial.shared_bytes, nullptr, Numbers{in, out});
    }
  }
  return "no such trial";
}

}  // namespace qacg::cuda

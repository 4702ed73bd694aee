// Kernels that test the emulator: single instructions of tensor cores, and kernels with one mistake each.
#include "cuda/mma.h"

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

void leaving_before_a_barrier(const Numbers) {
  if (thread_index() < 64) synchronise_block();
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

void a_store_off_four_bytes(const Numbers) { store_word(2, 0); }

void a_source_off_16_bytes(const Numbers n) { copy_async(0, n.in + 1, true); }

// Synchronisation between two accesses of two threads.
enum class Between { kNothing, kShuffle, kWarp, kBlock };

template <Between kBetween>
void pass() {
  if (kBetween == Between::kShuffle) shuffle_xor(0.0f, 1);
  if (kBetween == Between::kWarp) synchronise_warp();
  if (kBetween == Between::kBlock) synchronise_block();
}

// Thread 0 accesses a word, then thread kOther: 1, of the same warp, or 32, of the next.
template <Between kBetween, int kOther, bool kFirstWrites, bool kSecondWrites>
void two_threads(const Numbers n) {
  float* word = reinterpret_cast<float*>(shared_memory()) + 5;
  const auto touch = [&](bool write) {
    if (write) {
      *word = 1.0f;
    } else {
      memcpy(n.out, word, 4);
    }
  };
  if (thread_index() == 0) touch(kFirstWrites);
  pass<kBetween>();
  if (thread_index() == kOther) touch(kSecondWrites);
}

void bytes_side_by_side(const Numbers) { shared_memory()[thread_index()] = 1; }

// Thread 0 copies 16 bytes; thread kReader reads some of them.
template <bool kWaits, Between kBetween, int kReader>
void read_behind_a_copy(const Numbers n) {
  if (thread_index() == 0) {
    copy_async(0, n.in, true);
    commit_copies();
    if (kWaits) wait_for_copies<0>();
  }
  pass<kBetween>();
  if (thread_index() == kReader) memcpy(n.out, shared_memory() + 4, 4);
}

// Two copies to the same bytes, the second before the first has been waited for.
void copy_onto_a_copy(const Numbers n) {
  copy_async(16 * thread_index(), n.in, true);
  commit_copies();
  copy_async(16 * thread_index(), n.in, true);
}

// ldmatrix gives a row to other lanes than the one that stored it.
template <Between kBefore, Between kBehind>
void matrices_between_stores(const Numbers n) {
  const auto store = [&] {
    for (int word = 0; word < 4; ++word) store_word(16 * thread_index() + 4 * word, n.in[word]);
  };
  store();
  pass<kBefore>();
  uint32_t to[4];
  load_matrices(to, 16 * thread_index());
  memcpy(n.out + thread_index(), to, 4);
  pass<kBehind>();
  store();
}

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
    {"leaving before a barrier", leaving_before_a_barrier, 128, 4096},
    {"different instructions", different_instructions, 128, 4096},
    {"a byte too far", a_byte_too_far, 128, 4096},
    {"a store off four bytes", a_store_off_four_bytes, 128, 4096},
    {"a source off 16 bytes", a_source_off_16_bytes, 128, 4096},
    {"write, shuffle, read, same warp", two_threads<Between::kShuffle, 1, true, false>, 64, 4096},
    {"write, warp's barrier, read, same warp", two_threads<Between::kWarp, 1, true, false>, 64, 4096},
    {"write, warp's barrier, read, next warp", two_threads<Between::kWarp, 32, true, false>, 64, 4096},
    {"write, block's barrier, read, next warp", two_threads<Between::kBlock, 32, true, false>, 64, 4096},
    {"read, read, next warp", two_threads<Between::kNothing, 32, false, false>, 64, 4096},
    {"read, write, next warp", two_threads<Between::kNothing, 32, false, true>, 64, 4096},
    {"write, write, next warp", two_threads<Between::kNothing, 32, true, true>, 64, 4096},
    {"write, block's barrier, write, next warp", two_threads<Between::kBlock, 32, true, true>, 64, 4096},
    {"bytes side by side", bytes_side_by_side, 64, 4096},
    {"copy, wait, read, same thread", read_behind_a_copy<true, Between::kNothing, 0>, 64, 4096},
    {"copy, read, same thread", read_behind_a_copy<false, Between::kNothing, 0>, 64, 4096},
    {"copy, wait, read, next warp", read_behind_a_copy<true, Between::kNothing, 32>, 64, 4096},
    {"copy, wait, block's barrier, read, next warp", read_behind_a_copy<true, Between::kBlock, 32>, 64, 4096},
    {"copy onto a copy", copy_onto_a_copy, 32, 4096},
    {"store, matrices", matrices_between_stores<Between::kNothing, Between::kWarp>, 32, 4096},
    {"matrices, store", matrices_between_stores<Between::kWarp, Between::kNothing>, 32, 4096},
    {"store, barrier, matrices, barrier, store", matrices_between_stores<Between::kWarp, Between::kWarp>, 32, 4096},
};

}  // namespace

// Runs a trial; returns null or the emulator's error message.
extern "C" const char* run_trial(const char* name, const uint32_t* in, uint32_t* out) {
  for (const Trial& trial : kTrials) {
    if (strcmp(trial.name, name) == 0) {
      return launch(trial.kernel, 1, trial.threads, trial.shared_bytes, nullptr, Numbers{in, out});
    }
  }
  return "no such trial";
}

}  // namespace qacg::cuda

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

// Every thread of the first warp reads a word, before and after a barrier of the warp; then thread kWriter writes it.
template <int kWriter, bool kBarrierLast>
void write_behind_readers(const Numbers n) {
  float* word = reinterpret_cast<float*>(shared_memory());
  const bool reads = thread_index() < kWarp;
  if (reads) memcpy(n.out + thread_index(), word, 4);
  synchronise_warp();
  if (reads && !kBarrierLast) memcpy(n.out + thread_index(), word, 4);
  synchronise_warp();
  if (thread_index() == kWriter) *word = 1.0f;
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
    {"write, read, same warp", two_threads<Between::kNothing, 1, true, false>, 64, 4096},
    {"write, shuffle, read, same warp", two_threads<Between::kShuffle, 1, true, false>, 64, 4096},
    {"write, warp's barrier, read, same warp", two_threads<Between::kWarp, 1, true, false>, 64, 4096},
    {"write, warp's barrier, read, next warp", two_threads<Between::kWarp, 32, true, false>, 64, 4096},
    {"write, block's barrier, read, next warp", two_threads<Between::kBlock, 32, true, false>, 64, 4096},
    {"write, read, same thread", two_threads<Between::kNothing, 0, true, false>, 64, 4096},
    {"read, read, next warp", two_threads<Between::kNothing, 32, false, false>, 64, 4096},
    {"read, write, next warp", two_threads<Between::kNothing, 32, false, true>, 64, 4096},
    {"write, write, next warp", two_threads<Between::kNothing, 32, true, true>, 64, 4096},
    {"write, block's barrier, write, next warp", two_threads<Between::kBlock, 32, true, true>, 64, 4096},
    {"reads, warp's barrier, write, same warp", write_behind_readers<7, false>, 64, 4096},
    {"reads, warp's barriers, write, next warp", write_behind_readers<32, true>, 64, 4096},
    {"bytes side by side", bytes_side_by_side, 64, 4096},
    {"copy, wait, read, same thread", read_behind_a_copy<true, Between::kNothing, 0>, 64, 4096},
    {"copy, read, same thread", read_behind_a_copy<false, Between::kNothing, 0>, 64, 4096},
    {"copy, wait, read, next warp", read_behind_a_copy<true, Between::kNothing, 32>, 64, 4096},
    {"copy, block's barrier, read, next warp", read_behind_a_copy<false, Between::kBlock, 32>, 64, 4096},
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

// Kernels that test the emulator's products of warp groups: single products, and kernels with one mistake each.
#include "cuda/hopper_tile.h"

namespace qacg::cuda {
namespace {

struct Numbers {
  const uint32_t* in;
  uint32_t* out;
};

constexpr int kGroupThreads = 128, kImageBytes = 32 * 1024;

uint64_t descriptor_at(const uint32_t* words) { return words[0] | static_cast<uint64_t>(words[1]) << 32; }

void write_image(const uint32_t* from) {
  for (int n = thread_index(); n < kImageBytes / 4; n += kGroupThreads) store_word(4 * n, from[n]);
}

template <int kTiles>
void write_sums(uint32_t* out, const float (&c)[kTiles][4]) {
  memcpy(out + 4 * kTiles * thread_index(), c, sizeof(c));
}

// in: the two descriptors, then the image of shared memory; out: each thread's sums of 64 x 64, times two.
void scores(const Numbers n) {
  write_image(n.in + 4);
  show_to_products();
  synchronise_block();
  float c[8][4];
  fence_registers();
  multiply(c, descriptor_at(n.in), descriptor_at(n.in + 2), Float16{});
  multiply_add(c, descriptor_at(n.in), descriptor_at(n.in + 2), Float16{});
  commit_products();
  wait_for_products<0>(c);
  write_sums(n.out, c);
}

// in: a descriptor, an image, and each thread's four registers of weights; out: sums of 64 x 128, from ones.
void weighted(const Numbers n) {
  write_image(n.in + 4);
  show_to_products();
  synchronise_block();
  float c[16][4];
  for (auto& fragment : c) std::fill(fragment, fragment + 4, 1.0f);
  uint32_t weights[1][4];
  memcpy(weights, n.in + 4 + kImageBytes / 4 + 4 * thread_index(), sizeof(weights));
  fence_registers(c, weights);
  multiply_add(c, weights[0], descriptor_at(n.in), Float16{});
  commit_products();
  wait_for_products<0>(c);
  write_sums(n.out, c);
}

// in: address, columns apart, rows apart; out: the descriptor, and the same moved by 2,048 bytes.
void descriptor(const Numbers n) {
  const uint64_t all[] = {matrix_descriptor(n.in[0], n.in[1], n.in[2]),
                          advanced(matrix_descriptor(n.in[0], n.in[1], n.in[2]), 2048)};
  if (thread_index() == 0) memcpy(n.out, all, sizeof(all));
}

// For a tile of 128 rows of 128 dims at address 4,096. out: the addresses of each row's chunks, row by row; then the
// descriptors of the rows from 64 on, at dims 0, 16, ...; then those of all dims, at rows 0, 16, ...
void tile(const Numbers n) {
  const mma::Panels<128, 128> panels{4096};
  if (thread_index() > 0) return;
  uint32_t* out = n.out;
  for (int row = 0; row < 128; ++row) {
    for (int chunk = 0; chunk < 16; ++chunk) *out++ = panels.at(row, chunk);
  }
  for (int k = 0; k < 8; ++k, out += 2) {
    const uint64_t bits = advanced(panels.along_the_sum(64), panels.dims(k));
    memcpy(out, &bits, sizeof(bits));
  }
  for (int k = 0; k < 8; ++k, out += 2) {
    const uint64_t bits = advanced(panels.across_the_sum(), panels.rows(k));
    memcpy(out, &bits, sizeof(bits));
  }
}

enum class Wrong {
  kNothing,
  kNotShown,
  kShownBehindTheBarrier,
  kNoBarrier,
  kNoFence,
  kWeightsBehindTheFence,
  kSumsBehindTheFence,
  kNoWait,
  kNotAllWaitedFor,
  kWeightsBeforeTheWait,
  kSumsBeforeTheWait,
  kNoCommit,
  kMatrixBeforeTheWait,
  kMatrixBehindTheWait,
  kMatrixBehindABarrier,
  kBaseOffset,
  kBeyond,
  kOneThreadElsewhere,
};

// c += weights times 16 rows at address 0, by two groups of products; in: 4 KiB of matrix.
template <Wrong kWrong, bool kCopied = false>
void mistaken(const Numbers n) {
  const auto is = [](Wrong wrong) { return kWrong == wrong; };
  if (kCopied) {
    copy_async(16 * thread_index(), n.in + 4 * thread_index(), true);
    commit_copies();
    wait_for_copies<0>();
  } else {
    store_word(4 * thread_index(), n.in[thread_index()]);
  }
  if (!is(Wrong::kNotShown) && !is(Wrong::kShownBehindTheBarrier)) show_to_products();
  if (!is(Wrong::kNoBarrier)) synchronise_block();
  if (is(Wrong::kShownBehindTheBarrier)) show_to_products();
  float c[8][4] = {}, other[8][4] = {};
  uint32_t weights[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  uint64_t matrix = matrix_descriptor(is(Wrong::kBeyond) ? 8192 : 0, 0, kAtomBytes);
  if (is(Wrong::kBaseOffset)) matrix |= uint64_t{1} << 49;
  if (is(Wrong::kOneThreadElsewhere) && thread_index() == 77) matrix = advanced(matrix, 1024);
  if (!is(Wrong::kNoFence)) fence_registers(c, other, weights);
  if (is(Wrong::kWeightsBehindTheFence)) weights[1][2] = 9;
  if (is(Wrong::kSumsBehindTheFence)) c[3][1] = 9.0f;
  multiply_add(c, weights[0], matrix, Float16{});
  commit_products();
  multiply_add(other, weights[1], matrix, Float16{});
  if (!is(Wrong::kNoCommit)) commit_products();
  if (is(Wrong::kWeightsBeforeTheWait)) weights[1][0] = 9;
  if (is(Wrong::kSumsBeforeTheWait)) other[2][2] = 9.0f;
  if (is(Wrong::kMatrixBeforeTheWait) && thread_index() == 5) store_word(0, 1);
  if (is(Wrong::kNotAllWaitedFor)) wait_for_products<1>(c, other);
  if (!is(Wrong::kNoWait)) wait_for_products<0>(c, other);
  if (is(Wrong::kMatrixBehindABarrier)) synchronise_block();
  if ((is(Wrong::kMatrixBehindTheWait) || is(Wrong::kMatrixBehindABarrier)) && thread_index() == 5) store_word(0, 1);
  for (int t = 0; t < 8; ++t) {
    for (int e = 0; e < 4; ++e) c[t][e] += other[t][e];
  }
  write_sums(n.out, c);
}

struct Trial {
  const char* name;
  void (*kernel)(const Numbers);
  int64_t shared_bytes;
};

constexpr Trial kTrials[] = {
    {"scores", scores, kImageBytes},
    {"weighted", weighted, kImageBytes},
    {"descriptor", descriptor, 0},
    {"tile", tile, 0},
    {"right", mistaken<Wrong::kNothing>, 4096},
    {"right, by cp.async", mistaken<Wrong::kNothing, true>, 4096},
    {"not shown", mistaken<Wrong::kNotShown>, 4096},
    {"not shown, by cp.async", mistaken<Wrong::kNotShown, true>, 4096},
    {"shown behind the barrier", mistaken<Wrong::kShownBehindTheBarrier>, 4096},
    {"no barrier", mistaken<Wrong::kNoBarrier>, 4096},
    {"no fence", mistaken<Wrong::kNoFence>, 4096},
    {"weights behind the fence", mistaken<Wrong::kWeightsBehindTheFence>, 4096},
    {"sums behind the fence", mistaken<Wrong::kSumsBehindTheFence>, 4096},
    {"no wait", mistaken<Wrong::kNoWait>, 4096},
    {"not all waited for", mistaken<Wrong::kNotAllWaitedFor>, 4096},
    {"weights before the wait", mistaken<Wrong::kWeightsBeforeTheWait>, 4096},
    {"sums before the wait", mistaken<Wrong::kSumsBeforeTheWait>, 4096},
    {"no commit", mistaken<Wrong::kNoCommit>, 4096},
    {"matrix before the wait", mistaken<Wrong::kMatrixBeforeTheWait>, 4096},
    {"matrix behind the wait", mistaken<Wrong::kMatrixBehindTheWait>, 4096},
    {"matrix behind a barrier", mistaken<Wrong::kMatrixBehindABarrier>, 4096},
    {"base offset", mistaken<Wrong::kBaseOffset>, 4096},
    {"beyond", mistaken<Wrong::kBeyond>, 4096},
    {"one thread elsewhere", mistaken<Wrong::kOneThreadElsewhere>, 4096},
};

}  // namespace

// Runs a trial; returns null or the emulator's error message.
extern "C" const char* run_trial(const char* name, const uint32_t* in, uint32_t* out) {
  for (const Trial& trial : kTrials) {
    if (strcmp(trial.name, name) == 0) {
      return launch(trial.kernel, 1, kGroupThreads, trial.shared_bytes, nullptr, Numbers{in, out});
    }
  }
  return "no such trial";
}

}  // namespace qacg::cuda

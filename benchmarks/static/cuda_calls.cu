// With two arguments, the length and 1 for dropout, prints a line for each kernel of the tensor-core paths, in a call
// of full tiles:
//   name, padded head size, threads, bytes of shared memory, queries and keys of a tile, the parameters in hexadecimal
// for one head and lambda given. With four arguments, the sizes B, H, L and D, prints a line for each kernel that sums
// the gradients of gate vectors:
//   name, blocks, threads, bytes of shared memory, the parameters in hexadecimal
// for vectors that the heads share, and no biases. Both have bfloat16 elements, as many queries as keys and no mask.
// The addresses are invented; 0 is an absent tensor.
#include <stdio.h>
#include <stdlib.h>

#include "gate_kernels.h"
#include "hopper_forward.h"
#include "mma_launch.h"

using namespace qacg::cuda;

namespace {

void* const somewhere = reinterpret_cast<void*>(1ll << 32);

template <typename Tensor>
void fill(Tensor& t, int64_t heads, int64_t length, int64_t row) {
  t = {};
  t.data = somewhere;
  t.batch = heads * length * row;
  t.head = length * row;
  t.row = row;
}

Problem problem_of(int64_t sequences, int64_t heads, int64_t length, int64_t dim) {
  Problem p{};
  p.element = Element::kBfloat16;
  p.head_dim = static_cast<int32_t>(dim);
  p.sequences = sequences;
  p.heads = heads;
  p.query_length = p.key_length = length;
  for (Tensor4* t : {&p.query, &p.key, &p.value, &p.context_query, &p.context_key, &p.out}) {
    fill(*t, heads, length, dim);
    t->dim = 1;
  }
  for (Rows* r : {&p.row_max, &p.row_sum}) fill(*r, heads, length, 1);
  p.beta = p.gamma = p.scale = p.quasi_scale = p.keep_scale = 1.0f;
  return p;
}

Gradients gradients_of(const Problem& p) {
  Gradients g{};
  for (Tensor4* t : {&g.out, &g.query, &g.key, &g.value, &g.context_query, &g.context_key}) *t = p.query;
  for (Rows* r : {&g.lambda, &g.terms, &g.query_logit, &g.key_logit}) *r = p.row_max;
  return g;
}

template <typename Part>
void print_bytes(const Part& part) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&part);
  static_assert(sizeof(Part) % 8 == 0);  // the next parameter follows
  for (size_t n = 0; n < sizeof(Part); ++n) printf("%02x", bytes[n]);
}

void print_gate_kernel(const char* kernel, int64_t blocks, const Problem& p, const Gradients& g) {
  printf("%s %lld %d %lld ", kernel, static_cast<long long>(blocks), kGateThreads, static_cast<long long>(kGateShared));
  print_bytes(p);
  print_bytes(g);
  printf("\n");
}

void print_gate_kernels(int64_t sequences, int64_t heads, int64_t length, int64_t dim) {
  Problem p = problem_of(sequences, heads, length, dim);
  Gradients g = gradients_of(p);
  for (int v = 0; v < 4; ++v) p.gate_vectors[v] = g.gate_vectors[v] = {somewhere, 0, 1};
  g.gate_sums = static_cast<float*>(somewhere);
  g.gate_parts = part_count(p);
  print_gate_kernel("gate_partial_sums", partial_sums_blocks(p), p, g);
  Problem first_head = p;  // the blocks of other heads return at once
  first_head.heads = 1;
  print_gate_kernel("gate_sums", gate_sums_blocks(first_head), p, g);
}

template <typename Shape, typename... Parameters>
void print(const char* kernel, int dim, int keys, const Parameters&... parameters) {
  printf("%s %d %d %lld %d %d ", kernel, dim, Shape::kThreads, static_cast<long long>(Shape::kShared), Shape::kRows,
         keys);
  (print_bytes(parameters), ...);
  printf("\n");
}

template <int kDim>
void print_all(int64_t length, bool dropout) {
  Problem p = problem_of(1, 1, length, kDim);
  p.lambda = p.row_max;
  if (dropout) {
    p.seed = static_cast<const int64_t*>(somewhere);
    p.drop_threshold = 6554;
  }
  if (length <= mma::kShortKeys) {
    if constexpr (kDim <= mma::kMostShortDims) print<mma::ShortShape<kDim>>("forward_short", kDim, mma::kShortKeys, p);
    return;
  }
  print<mma::ForwardShape<kDim>>("forward", kDim, mma::ForwardShape<kDim>::kKeys, p);
  if constexpr (kDim > 32) print<mma::HopperShape<kDim>>("hopper_forward", kDim, mma::HopperShape<kDim>::kKeys, p);
  p.softmax_out = p.out;
  const Gradients g = gradients_of(p);
  print<mma::RowsShape<kDim>>("backward_rows", kDim, mma::RowsShape<kDim>::kKeys, p, g);
  print<mma::KeysShape<kDim>>("backward_keys", kDim, mma::KeysShape<kDim>::kKeys, p, g);
  if constexpr (kDim >= 64) {
    print<mma::NarrowKeysShape<kDim>>("narrow_backward_keys", kDim, mma::NarrowKeysShape<kDim>::kKeys, p, g);
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int64_t length = atoll(arguments[1]);
  if (count == 5) {
    print_gate_kernels(length, atoll(arguments[2]), atoll(arguments[3]), atoll(arguments[4]));
    return 0;
  }
  const bool dropout = atoi(arguments[2]) != 0;
  print_all<32>(length, dropout);
  print_all<64>(length, dropout);
  print_all<128>(length, dropout);
}

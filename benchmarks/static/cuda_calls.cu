// Prints a line for each kernel of the tensor-core paths, in a call of full tiles:
//   name, padded head size, threads, bytes of shared memory, queries and keys of a tile, the parameters in hexadecimal
// for one head, as many queries as keys, lambda given, no mask. The addresses are invented; 0 is an absent tensor.
// Arguments: the length, and 1 for dropout.
#include <stdio.h>
#include <stdlib.h>

#include "hopper_forward.h"
#include "mma_launch.h"

using namespace qacg::cuda;

namespace {

void* const somewhere = reinterpret_cast<void*>(1ll << 32);

template <typename Tensor>
void fill(Tensor& t, int64_t length, int64_t row) {
  t = {};
  t.data = somewhere;
  t.batch = t.head = length * row;
  t.row = row;
}

Problem problem_of(int64_t length, int64_t dim, bool dropout) {
  Problem p{};
  p.element = Element::kBfloat16;
  p.head_dim = static_cast<int32_t>(dim);
  p.sequences = p.heads = 1;
  p.query_length = p.key_length = length;
  for (Tensor4* t : {&p.query, &p.key, &p.value, &p.context_query, &p.context_key, &p.out}) {
    fill(*t, length, dim);
    t->dim = 1;
  }
  for (Rows* r : {&p.lambda, &p.row_max, &p.row_sum}) fill(*r, length, 1);
  p.beta = p.gamma = p.scale = p.quasi_scale = p.keep_scale = 1.0f;
  if (dropout) {
    p.seed = static_cast<const int64_t*>(somewhere);
    p.drop_threshold = 6554;
  }
  return p;
}

Gradients gradients_of(int64_t length, int64_t dim) {
  Gradients g{};
  for (Tensor4* t : {&g.out, &g.query, &g.key, &g.value, &g.context_query, &g.context_key}) {
    fill(*t, length, dim);
    t->dim = 1;
  }
  for (Rows* r : {&g.lambda, &g.terms, &g.query_logit, &g.key_logit}) fill(*r, length, 1);
  return g;
}

template <typename Part>
void print_bytes(const Part& part) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&part);
  static_assert(sizeof(Part) % 8 == 0);  // the next parameter follows
  for (size_t n = 0; n < sizeof(Part); ++n) printf("%02x", bytes[n]);
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
  Problem p = problem_of(length, kDim, dropout);
  if (length <= mma::kShortKeys) {
    if constexpr (kDim <= mma::kMostShortDims) print<mma::ShortShape<kDim>>("forward_short", kDim, mma::kShortKeys, p);
    return;
  }
  print<mma::ForwardShape<kDim>>("forward", kDim, mma::ForwardShape<kDim>::kKeys, p);
  if constexpr (kDim > 32) print<mma::HopperShape<kDim>>("hopper_forward", kDim, mma::HopperShape<kDim>::kKeys, p);
  p.softmax_out = p.out;
  const Gradients g = gradients_of(length, kDim);
  print<mma::RowsShape<kDim>>("backward_rows", kDim, mma::RowsShape<kDim>::kKeys, p, g);
  print<mma::KeysShape<kDim>>("backward_keys", kDim, mma::KeysShape<kDim>::kKeys, p, g);
  if constexpr (kDim >= 64) {
    print<mma::NarrowKeysShape<kDim>>("narrow_backward_keys", kDim, mma::NarrowKeysShape<kDim>::kKeys, p, g);
  }
}

}  // namespace

int main(int, char** arguments) {
  const int64_t length = atoll(arguments[1]);
  const bool dropout = atoi(arguments[2]) != 0;
  print_all<32>(length, dropout);
  print_all<64>(length, dropout);
  print_all<128>(length, dropout);
}

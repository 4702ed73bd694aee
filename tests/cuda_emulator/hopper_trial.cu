// The Hopper forward without torch: returns its output and the emulator's error message.
#include "cuda/hopper_forward.h"

namespace qacg::cuda {

// One head of 64 dims in bfloat16 with a lambda tensor: `tensors` are query, key, value, context query, context key,
// lambda and output, dense.
extern "C" const char* run_hopper(int64_t queries, int64_t keys, uint16_t* const* tensors) {
  const auto wide = [&](int n) { return Tensor4{tensors[n], 0, 0, 64, 1}; };
  std::vector<float> row_max(queries), row_sum(queries);
  Problem p{};
  p.element = Element::kBfloat16;
  p.head_dim = 64;
  p.sequences = p.heads = 1;
  p.query_length = queries;
  p.key_length = keys;
  p.query = wide(0);
  p.key = wide(1);
  p.value = wide(2);
  p.context_query = wide(3);
  p.context_key = wide(4);
  p.lambda = {tensors[5], 0, 0, 1};
  p.out = wide(6);
  p.row_max = {row_max.data(), 0, 0, 1};
  p.row_sum = {row_sum.data(), 0, 0, 1};
  p.scale = 0.125f;
  p.quasi_scale = 1.0f;
  using Shape = mma::HopperShape<64>;
  return launch(mma::hopper_forward<Bfloat16, 64>, unit_count(p, queries, Shape::kRows), Shape::kThreads,
                Shape::kShared, nullptr, p);
}

}  // namespace qacg::cuda

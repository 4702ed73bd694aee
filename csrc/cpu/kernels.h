// The kernels of one instruction set, as a table. Included once by each kernels_*.cpp.
#pragma once

#include "backward.h"
#include "engine_f32.h"

namespace QACG_ISA {

template <typename Engine>
struct Table {
  static int64_t forward_scratch(const qacg::Problem& p, int64_t longest_query, int64_t longest_key) {
    return Forward<Engine>(p, nullptr, longest_query, longest_key).used();
  }
  static int64_t backward_scratch(const qacg::Problem& p, int64_t longest_query, int64_t longest_key) {
    const qacg::Gradients none{};
    return Backward<Engine>(p, none, nullptr, longest_query, longest_key).used();
  }
  static void forward(const qacg::Problem& p, qacg::Unit unit, const qacg::Unit* next, qacg::Scratch scratch) {
    Forward<Engine>(p, scratch.data, scratch.longest_query, scratch.longest_key).run(unit, next);
  }
  static void backward(const qacg::Problem& p, const qacg::Gradients& g, qacg::Unit unit, const qacg::Unit* next,
                       qacg::Scratch scratch) {
    Backward<Engine>(p, g, scratch.data, scratch.longest_query, scratch.longest_key).run(unit, next);
  }
  static void backward_rows(const qacg::Problem& p, const qacg::Gradients& g, qacg::Unit unit, const qacg::Unit* next,
                            qacg::Scratch scratch) {
    Backward<Engine>(p, g, scratch.data, scratch.longest_query, scratch.longest_key).run_rows(unit, next);
  }
  static void backward_keys(const qacg::Problem& p, const qacg::Gradients& g, qacg::Unit unit, const qacg::Unit* next,
                            qacg::Scratch scratch) {
    Backward<Engine>(p, g, scratch.data, scratch.longest_query, scratch.longest_key).run_keys(unit, next);
  }
  static constexpr qacg::Kernels kernels(const char* name) {
    return {name,    Engine::kRowBlock, kKeyBlock,     forward_scratch, backward_scratch,
            forward, backward,          backward_rows, backward_keys,   gate_sums<typename Engine::Scalar>};
  }
};

}  // namespace QACG_ISA

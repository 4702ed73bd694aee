// The kernels of one instruction set, as a table. Included once by each kernels_*.cpp.
#pragma once

#include "backward.h"
#include "engine_in_place.h"

namespace QACG_ISA {

template <typename Engine>
struct Table {
  using InPlace = InPlaceEngine<Engine>;
  template <typename Chosen>
  struct For {
    using Forward = QACG_ISA::Forward<Chosen>;
    using Backward = QACG_ISA::Backward<Chosen>;
  };

  // Calls f with the kernels that suit the lengths: those without packing where there are few queries or few keys.
  template <typename F>
  static auto suited(const qacg::Problem& p, int64_t longest_query, int64_t longest_key, const F& f) {
    return InPlace::takes(p, longest_query, longest_key) ? f(For<InPlace>{}) : f(For<Engine>{});
  }
  template <typename F>
  static void each(const qacg::Units& units, const F& f) {
    for (int64_t n = 0; n < units.count; ++n) f(units.data[n], n + 1 < units.count ? units.data + n + 1 : units.next);
  }
  template <typename F>
  static void backward_of(const qacg::Problem& p, const qacg::Gradients& g, qacg::Scratch scratch, const F& f) {
    suited(p, scratch.longest_query, scratch.longest_key, [&](auto kernels) {
      typename decltype(kernels)::Backward backward(p, g, scratch.data, scratch.longest_query, scratch.longest_key);
      f(backward);
    });
  }

  static int64_t forward_scratch(const qacg::Problem& p, int64_t longest_query, int64_t longest_key) {
    return suited(p, longest_query, longest_key, [&](auto kernels) {
      return typename decltype(kernels)::Forward(p, nullptr, longest_query, longest_key).used();
    });
  }
  static int64_t backward_scratch(const qacg::Problem& p, int64_t longest_query, int64_t longest_key) {
    const qacg::Gradients none{};
    return suited(p, longest_query, longest_key, [&](auto kernels) {
      return typename decltype(kernels)::Backward(p, none, nullptr, longest_query, longest_key).used();
    });
  }
  static void forward(const qacg::Problem& p, qacg::Units units, qacg::Scratch scratch) {
    suited(p, scratch.longest_query, scratch.longest_key, [&](auto kernels) {
      typename decltype(kernels)::Forward forward(p, scratch.data, scratch.longest_query, scratch.longest_key);
      each(units, [&](qacg::Unit unit, const qacg::Unit* next) { forward.run(unit, next); });
    });
  }
  static void backward(const qacg::Problem& p, const qacg::Gradients& g, qacg::Units units, qacg::Scratch scratch) {
    backward_of(p, g, scratch, [&](auto& kernel) {
      each(units, [&](qacg::Unit unit, const qacg::Unit* next) { kernel.run(unit, next); });
    });
  }
  static void backward_rows(const qacg::Problem& p, const qacg::Gradients& g, qacg::Units units,
                            qacg::Scratch scratch) {
    backward_of(p, g, scratch,
                [&](auto& kernel) { each(units, [&](qacg::Unit unit, const qacg::Unit*) { kernel.run_rows(unit); }); });
  }
  static void backward_keys(const qacg::Problem& p, const qacg::Gradients& g, qacg::Units units,
                            qacg::Scratch scratch) {
    backward_of(p, g, scratch,
                [&](auto& kernel) { each(units, [&](qacg::Unit unit, const qacg::Unit*) { kernel.run_keys(unit); }); });
  }
  static constexpr qacg::Kernels kernels(const char* name) {
    return {name,    Engine::kRowBlock, kKeyBlock,     forward_scratch, backward_scratch,
            forward, backward,          backward_rows, backward_keys,   gate_sums<typename Engine::Scalar>};
  }
};

}  // namespace QACG_ISA

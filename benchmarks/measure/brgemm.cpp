// The rate of matrix products with data in the cache: oneDNN's batch-reduced product, as torch exports it, on tiles in
// a core's cache. Built by benchmarks/measure/ceiling.py; no part of the package.

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <torch/library.h>

#include <type_traits>

namespace {

template <typename T>
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, int64_t repeats) {
  constexpr bool vnni = !std::is_same_v<T, float>;
  const int64_t m = a.size(1), k = a.size(2), n = b.size(2);
  at::parallel_for(0, a.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      for (int64_t i = 0; i < repeats; ++i) {
        at::native::cpublas::brgemm(m, n, k, k, n, n, /*add_C=*/false, a.const_data_ptr<T>() + tile * m * k,
                                    b.const_data_ptr<T>() + tile * k * n, c.mutable_data_ptr<float>() + tile * m * n,
                                    vnni);
      }
    }
    at::native::cpublas::brgemm_release(vnni);
  });
}

// c[t] = a[t] b[t], `repeats` times: a (tiles, M, K), b (tiles, K, N), c (tiles, M, N) in float32, all contiguous. The
// rows of a bfloat16 b are taken as VNNI pairs.
void brgemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, int64_t repeats) {
  TORCH_CHECK(
      a.dim() == 3 && b.dim() == 3 && c.dim() == 3 && a.is_contiguous() && b.is_contiguous() && c.is_contiguous(),
      "brgemm: expected three contiguous tensors of three dimensions");
  TORCH_CHECK(b.size(0) == a.size(0) && b.size(1) == a.size(2) && c.size(0) == a.size(0) && c.size(1) == a.size(1) &&
                  c.size(2) == b.size(2),
              "brgemm: expected (T, M, K), (T, K, N) and (T, M, N), got ", a.sizes(), ", ", b.sizes(), " and ",
              c.sizes());
  TORCH_CHECK(a.scalar_type() == b.scalar_type() && c.scalar_type() == at::kFloat,
              "brgemm: expected operands of one dtype and a float32 result");
  if (a.scalar_type() == at::kFloat) {
    multiply<float>(a, b, c, repeats);
  } else {
    multiply<at::BFloat16>(a, b, c, repeats);
  }
}

}  // namespace

TORCH_LIBRARY(qacg_benchmarks, library) { library.def("brgemm(Tensor a, Tensor b, Tensor(c!) c, int repeats) -> ()"); }

TORCH_LIBRARY_IMPL(qacg_benchmarks, CPU, library) { library.impl("brgemm", brgemm); }

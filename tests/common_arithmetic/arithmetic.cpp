// The arithmetic of csrc/common as functions of arrays, for tests/kernels/test_common_arithmetic.py.
#include "../../csrc/common/dropout.h"
#include "../../csrc/common/half_types.h"

using namespace qacg;

extern "C" {

uint32_t threshold_of(double dropout_p) { return drop_threshold(dropout_p); }
float scale_of(uint32_t threshold) { return keep_scale(threshold); }

void widen_float16(const uint16_t* bits, float* to, int64_t count) {
  for (int64_t n = 0; n < count; ++n) to[n] = widen(Float16{bits[n]});
}

void widen_bfloat16(const uint16_t* bits, float* to, int64_t count) {
  for (int64_t n = 0; n < count; ++n) to[n] = widen(Bfloat16{bits[n]});
}

void narrow_float16(const float* x, uint16_t* to, int64_t count) {
  for (int64_t n = 0; n < count; ++n) {
    Float16 narrowed;
    narrow(x[n], narrowed);
    to[n] = narrowed.bits;
  }
}

void narrow_bfloat16(const float* x, uint16_t* to, int64_t count) {
  for (int64_t n = 0; n < count; ++n) {
    Bfloat16 narrowed;
    narrow(x[n], narrowed);
    to[n] = narrowed.bits;
  }
}
}

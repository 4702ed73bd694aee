// The factor log2(e), which turns an exponent of e into one of 2.
#pragma once

namespace qacg {

constexpr float kLog2e = 1.4426950408889634f;

}  // namespace qacg

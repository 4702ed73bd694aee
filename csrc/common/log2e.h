// Multiplies scores so that e^x becomes 2^x.
#pragma once

namespace qacg {

constexpr float kLog2e = 1.4426950408889634f;

}  // namespace qacg

// Scores are kept in powers of two: times this number, and 2^x in place of e^x.
#pragma once

namespace qacg {

constexpr float kLog2e = 1.4426950408889634f;

}  // namespace qacg

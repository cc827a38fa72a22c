// out = x weight^T + bias for int8 weights with a float32 scale for every 64 columns of a row.
//
// x is quantised as it comes, with a scale for every 64 columns of its rows too, so that products
// are sums of whole numbers; the sums over the groups of columns are float32, in order: a row of x
// gives the same bits in every batch, and on every instruction set up to the rounding of the
// scales.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/arguments/int8_linear.h"
#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm::cpu {

void run_int8_linear(const Int8LinearArgs& args, const ParallelFor& parallel);

}  // namespace rtp_llm::cpu

// SPDX-License-Identifier: Apache-2.0
// out = x weight^T + bias for int8 weights with a float32 scale for every 64 columns of a row.
//
// Sums over a group of columns are scaled and added in order, in float32: a row of x gives the same
// bits in every batch.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/gemm/linear_int8.h"
#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm::cpu {

// Weight-only: x is multiplied as it is.
void run_int8_linear(const Int8LinearArgs& args, const ParallelFor& parallel);

// x is quantised as it comes, with a scale for every 64 columns of its rows too, so that products
// are sums of whole numbers: the same bits on every instruction set up to the rounding of scales.
void run_w8a8_int8_linear(const Int8LinearArgs& args, const ParallelFor& parallel);

}  // namespace rtp_llm::cpu

// SPDX-License-Identifier: Apache-2.0
// Products of sorted rows with weights in MXFP4, which stay as they are stored.
//
// Few rows meet numbers that are decoded in registers, so that a weight costs 4.25 bits of memory
// traffic; for more rows a tile of weights is decoded once. Either way a row gives the same bits.
#pragma once

#include "rtp_llm/kernels/common/moe/mxfp4.h"
#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm::cpu {

void mxfp4_grouped_linear(const Mxfp4GroupedLinearArgs& args, const ParallelFor& parallel);
// The same with a table of the 16 numbers.
void table4_grouped_linear(const Table4GroupedLinearArgs& args, const ParallelFor& parallel);

}  // namespace rtp_llm::cpu

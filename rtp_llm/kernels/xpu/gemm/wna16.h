// SPDX-License-Identifier: Apache-2.0
// Products with integer weights in groups, which are read as they are packed.
#pragma once

#include "rtp_llm/kernels/common/gemm/wna16.h"
#include "rtp_llm/kernels/xpu/gemm/weight_product.h"

namespace rtp_llm::xpu {

struct Wna16Weight {
  const uint8_t* weight;  // as those of Wna16LinearArgs
  const float* scale;
  const uint8_t* zero;
  int64_t blocks, block_bytes, groups, group_columns;
  int bits;
};

void wna16_linear(Queue& queue, const Wna16LinearArgs& args);
void wna16_grouped_linear(Queue& queue, const Wna16LinearArgs& args);

}  // namespace rtp_llm::xpu

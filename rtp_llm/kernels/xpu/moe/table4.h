// SPDX-License-Identifier: Apache-2.0
// Products of sorted rows with weights in 4 bits, which stay as they are stored.
#pragma once

#include "rtp_llm/kernels/common/moe/mxfp4.h"
#include "rtp_llm/kernels/xpu/gemm/weight_product.h"

namespace rtp_llm::xpu {

// The pointers are those of the arguments.
struct Mxfp4Weight {
  const uint8_t *blocks, *scales;
  int64_t n, k;
};
struct Table4Weight {
  const uint8_t *codes, *scales;
  const float *table, *float_scales, *row_scales;
  int64_t n, k, group;
};

void mxfp4_grouped_linear(Queue& queue, const Mxfp4GroupedLinearArgs& args);
void table4_grouped_linear(Queue& queue, const Table4GroupedLinearArgs& args);

}  // namespace rtp_llm::xpu

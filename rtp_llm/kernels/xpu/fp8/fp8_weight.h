// SPDX-License-Identifier: Apache-2.0
// Products of floats with FP8 weights, which stay as they are stored.
#pragma once

#include "rtp_llm/kernels/common/fp8/fp8_weight.h"
#include "rtp_llm/kernels/xpu/gemm/weight_product.h"

namespace rtp_llm::xpu {

struct Fp8Weight {
  const uint8_t* weight;  // as those of Fp8WeightLinearArgs
  const float* scales;
  int64_t k, stride, block_rows, block_columns, row_scales;
};

void fp8_weight_linear(Queue& queue, const Fp8WeightLinearArgs& args);

}  // namespace rtp_llm::xpu

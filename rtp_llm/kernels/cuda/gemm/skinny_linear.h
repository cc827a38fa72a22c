// SPDX-License-Identifier: Apache-2.0
// Linear layers of few rows, fused with a norm, a gate or a residual, on NVIDIA GPUs only.
#pragma once

#include "rtp_llm/kernels/common/gemm/skinny_linear.h"

namespace rtp_llm::cuda {

// Most rows of x; what the columns and the outputs of the weight are multiples of.
constexpr int64_t kSkinnyRows = 16;
constexpr int64_t kSkinnyColumns = 64;
constexpr int64_t kSkinnyOutputs = 16;

inline bool takes_skinny_weight(int64_t outputs, int64_t columns, DType dtype) {
  return (dtype == DType::kBFloat16 || dtype == DType::kFloat16) && outputs % kSkinnyOutputs == 0 &&
         columns % kSkinnyColumns == 0;
}

// Up to how many rows of x the kernel is quicker with such a weight than a library, on the current
// device; 0 where it does not take the weight.
int64_t fused_linear_rows(int64_t outputs, int64_t columns, DType dtype);

// The same for products without a norm and a residual, which may be streams of the weight.
int64_t skinny_linear_rows(int64_t outputs, int64_t columns, DType dtype);

// Every end but kAdd, without a norm. RuntimeError for more rows or other weights than these.
void skinny_linear(const SkinnyLinearArgs& args, void* stream);

}  // namespace rtp_llm::cuda

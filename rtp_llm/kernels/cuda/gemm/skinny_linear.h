// SPDX-License-Identifier: Apache-2.0
// Linear layers of few rows with what surrounds them, on NVIDIA GPUs alone.
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

// Up to how many rows of x are quicker with such a weight than by a library, on the current device;
// 0: none.
int64_t skinny_linear_rows(int64_t outputs, int64_t columns, DType dtype);

// Norms bfloat16 rows alone: what it multiplies is not divided by the root mean square yet, and
// could leave the range of float16.
void skinny_linear(const SkinnyLinearArgs& args, void* stream);

}  // namespace rtp_llm::cuda

// SPDX-License-Identifier: Apache-2.0
// out = x weight^T + bias for packed int8 weights, as rtp_llm/kernels/common/gemm/linear_int8.h
// says. For GPUs with integer matrix instructions of NVIDIA's (sm_80 and newer).
#pragma once

#include "rtp_llm/kernels/common/gemm/linear_int8.h"

namespace rtp_llm::cuda {

// Rows of x that are multiplied by the packed weight. More are better served by the matrix products
// of a float weight, which takes less time to write than they take.
constexpr int64_t kInt8MostRows = 32;

// Weight-only: x as it is.
void int8_linear(const Int8LinearArgs& args, void* stream);

// x is quantised first: `numbers` has m * groups * 64 bytes for it, `scales` m * groups for its
// scales.
void w8a8_int8_linear(const Int8LinearArgs& args, int8_t* numbers, float* scales, void* stream);

// The weight as `args.dtype`, [n, k].
void widen_int8_weight(const Int8LinearArgs& args, void* out, void* stream);

}  // namespace rtp_llm::cuda

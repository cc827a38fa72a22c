// SPDX-License-Identifier: Apache-2.0
// Linear layers of few rows as streams of the weight, on Hopper alone.
#pragma once

#include "rtp_llm/kernels/common/gemm/skinny_linear.h"

namespace rtp_llm::cuda {

// Most rows of x.
constexpr int64_t kStreamRows = 64;

// As fused_linear_rows.
int64_t stream_linear_rows(int64_t outputs, int64_t columns, DType dtype);

// Whether streams take this product and are quicker than the kernel of skinny_linear.h, if that
// takes it, too.
bool streams_faster(const SkinnyLinearArgs& args);

// Ends but kAdd, without a norm.
void stream_linear(const SkinnyLinearArgs& args, void* stream);

}  // namespace rtp_llm::cuda

// SPDX-License-Identifier: Apache-2.0
// Products with int8 weights, which are read as they are packed.
#pragma once

#include "rtp_llm/kernels/common/gemm/linear_int8.h"
#include "rtp_llm/kernels/xpu/queue.h"

namespace rtp_llm::xpu {

void int8_linear(Queue& queue, const Int8LinearArgs& args);
void w8a8_int8_linear(Queue& queue, const Int8LinearArgs& args);

// Rows of x that a group multiplies with a block of weight rows, which it reads once for them.
constexpr int kInt8Rows = 8;
// An item has 4 neighbouring columns of a group of one weight row.
constexpr int kInt8StepColumns = 4;
constexpr int kInt8Steps = kInt8GroupColumns / kInt8StepColumns;
constexpr int kInt8Items = kInt8BlockRows * kInt8Steps;

}  // namespace rtp_llm::xpu

// SPDX-License-Identifier: Apache-2.0
// out = x weight^T + bias, for weights as checkpoints hold them: [outputs, inputs].
//
// Each weight row is read from memory once per block of x rows, converted once per tile of them,
// and meets all rows of the tile in registers. Sums are float32. The order of the additions of one
// output depends on nothing but k, so a row of x gives the same bits in every batch.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"
#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm::cpu {

// Strides are in elements, from row to row; the rows themselves are contiguous.
struct LinearArgs {
  DType dtype;         // of everything here
  const void* x;       // [m, k]
  const void* weight;  // [n, k]
  const void* bias;    // [n] or null
  void* out;           // [m, n]
  int64_t m, n, k;
  int64_t x_stride, weight_stride, out_stride;
};

void run_linear(const LinearArgs& args, const ParallelFor& parallel);

}  // namespace rtp_llm::cpu

// SPDX-License-Identifier: Apache-2.0
// Arguments of products of floats with FP8 weights (e4m3).
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

// out = x (weight * scales)^T + bias. block_rows x block_columns weights share a scale: 128 x 128,
// or a row. Strides are in elements.
struct Fp8WeightLinearArgs {
  const void* x;          // [rows, k]
  const uint8_t* weight;  // [n, k]
  const float* scales;    // [n / block_rows, k / block_columns] rounded up, contiguous
  const void* bias;       // [n] or null
  void* out;              // [rows, n], contiguous
  int64_t rows, n, k, x_stride, weight_stride;
  int64_t block_rows, block_columns;
  int64_t row_scales;  // scales of a row of the weight
  DType dtype;         // of x, bias and out
};

}  // namespace rtp_llm

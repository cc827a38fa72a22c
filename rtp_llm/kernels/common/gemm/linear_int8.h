// SPDX-License-Identifier: Apache-2.0
// Arguments of int8_linear: out = x weight^T + bias for int8 weights with a float32 scale for every
// 64 columns of a row, x being quantised likewise as it comes.
//
// The weight is packed (rtp_llm/ops/gemm/int8_layout.py does it): blocks of 16 rows, in a block
// groups of 64 columns, in a group steps of 4 columns; a step holds the 4 bytes of each row of the
// block side by side. The last block has the rows that are left. Bytes are the numbers plus 128.
// The scales are packed likewise: blocks, groups, rows.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

constexpr int kInt8GroupColumns = 64;
constexpr int kInt8BlockRows = 16;

// Strides are in elements. Groups is k in groups of 64 columns, rounded up.
struct Int8LinearArgs {
  DType dtype;            // of x, bias and out
  const void* x;          // [m, k]
  const uint8_t* weight;  // n * groups * 64 bytes
  const float* scale;     // n * groups
  const void* bias;       // [n] or null
  void* out;              // [m, n]
  int64_t m, n, k, groups;
  int64_t x_stride, out_stride;
};

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
// Arguments of products with integer weights of 4 or 8 bits in groups of columns, each of which has
// a scale and a zero point: w = scale * (code - zero).
//
// Weights are packed (rtp_llm/ops/gemm/wna16_layout.py does it) in blocks of 16 rows, zeros after
// the last one. In a block, a step of columns holds the codes of all 16 rows side by side, 4 bytes
// of each: 4 columns of 8 bits, or 8 columns of 4 bits, the first 4 in the low bits. Scales and
// zero points are packed likewise: blocks, groups, rows.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

constexpr int kWna16BlockRows = 16;

// out[r] = x[r, order] weight[e]^T + bias[e] for offsets[e] <= r < offsets[e + 1]. Strides are in
// elements.
struct Wna16LinearArgs {
  const void* x;           // [rows, k]
  const uint8_t* weight;   // [experts, blocks, 16 * columns * bits / 8]
  const float* scale;      // [experts, blocks, groups, 16]
  const uint8_t* zero;     // [experts, blocks, groups, 16]
  const int32_t* offsets;  // [experts + 1], or null: all rows are of one expert
  const int32_t* order;    // [columns]: where in x a column is, -1 for zeros; or null
  const void* bias;        // [experts, n] or null
  void* out;               // [rows, n], contiguous
  int64_t rows, n, k, x_stride;
  int64_t columns;      // k rounded up to whole parts
  int64_t groups;       // of a row of the weight
  int64_t group_parts;  // parts of a group; the last group may have fewer
  int part;             // columns of x that share a scale: 32 or 64
  int bits, experts;
  DType dtype;  // of x, bias and out

  constexpr int64_t blocks() const { return (n + kWna16BlockRows - 1) / kWna16BlockRows; }
  constexpr int64_t parts() const { return columns / part; }
  constexpr int64_t block_bytes() const { return columns * kWna16BlockRows * bits / 8; }
};

using Wna16GroupedLinearArgs = Wna16LinearArgs;

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
// Arguments of packed linear layers: out = activation(x weight^T + bias) in float32.
#pragma once

#include <cstdint>

namespace rtp_llm {

constexpr int kPackedColumns = 64;   // outputs of a block of the weight
constexpr int64_t kPackedRows = 96;  // most rows of x that meet a block at a time

enum class LinearActivation : int8_t { kNone, kGelu, kGeluTanh };

struct PackedLinearArgs {
  const float* x;       // [m, k]
  const float* weight;  // [column_blocks, k, kPackedColumns]
  const float* bias;    // [n] or null
  float* out;           // [m, n], contiguous
  int64_t m, n, k;
  int64_t x_stride;
  LinearActivation activation;

  // The work is cut into blocks of rows by blocks of columns.
  constexpr int64_t row_blocks() const { return (m + kPackedRows - 1) / kPackedRows; }
  constexpr int64_t column_blocks() const { return (n + kPackedColumns - 1) / kPackedColumns; }
  constexpr int64_t blocks() const { return row_blocks() * column_blocks(); }
  // Blocks that are worth a thread: about 20 us.
  constexpr int64_t grain() const {
    const int64_t products = (m < kPackedRows ? m : kPackedRows) * kPackedColumns * k;
    return products > 0 && products < 1000000 ? 1000000 / products : 1;
  }
};

}  // namespace rtp_llm

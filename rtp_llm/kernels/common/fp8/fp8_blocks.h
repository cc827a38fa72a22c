// SPDX-License-Identifier: Apache-2.0
// Sizes of block-scaled FP8 (e4m3), for the checks of all operators that take or make it.
#pragma once

#include <cstdint>

namespace rtp_llm {

// Channels of a row that share a scale; rows and columns of a weight's tile.
constexpr int64_t kFp8Block = 128;

// Blocks that cover `size` rows or columns.
constexpr int64_t fp8_blocks(int64_t size) { return (size + kFp8Block - 1) / kFp8Block; }

// Copies of activation scales begin at 16 bytes: at the scale of a row that is a multiple of this.
constexpr int64_t kFp8RowUnit = 4;

// Rows that a column of activation scales holds.
constexpr int64_t fp8_scale_rows(int64_t rows) {
  return (rows + kFp8RowUnit - 1) / kFp8RowUnit * kFp8RowUnit;
}

}  // namespace rtp_llm

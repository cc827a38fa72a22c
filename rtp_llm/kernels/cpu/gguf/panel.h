// SPDX-License-Identifier: Apache-2.0
// 16 rows of GGUF blocks, interleaved: as many bytes as the rows have in a file.
//
// Blocks lie in a panel in the order in which products read them, so that memory is read from end
// to end: the float16 numbers of two blocks (the last may be alone), then each of the two, its
// small scales before its codes. Steps are 4 columns of 16 rows, a byte each: a group of 32 columns
// has 8. Two steps share 64 bytes, one in low and one in high nibbles; of fifth bits 64 bytes hold
// one step per bit, of pairs of bits four steps.
//
//        float16 numbers           small scales            codes of 32 columns
// Q8_0   scales[16]                                        8 x 64 bytes, the numbers plus 128
// Q4_0   scales[16]                                        4 x 64 bytes of nibbles
// Q5_0   scales[16]                                        64 bytes of fifth bits, nibbles
// Q4_K   scales[16], mins[16]      3 x 64 bytes of 6 bits  4 x 64 bytes of nibbles
// Q5_K   the same                  the same                64 bytes of fifth bits, nibbles
// Q6_K   scales[16]                int8 [16 groups][16]    nibbles, 2 x 64 bytes of pairs of bits
//
// The 6-bit numbers are [8 groups][16 rows] of scales, then of mins; byte i of the three parts
// has those at i, 64 + i and 128 + i, and two bits each of that at 192 + i, lowest first.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/cpu/gguf/unit.h"

namespace rtp_llm::cpu {

constexpr int kGgufGroup = 32;  // columns that share a scale of x
constexpr int kGgufSteps = 8;   // of a group
constexpr int kGgufStepBytes = 64;

// Rows of the last panel that is interleaved, and all before it.
constexpr int64_t interleaved_rows(GgufType type, int64_t rows) {
  return info_of(type).interleaved ? rows / kGgufPanelRows * kGgufPanelRows : 0;
}

// Where a block of a panel has its float16 numbers, and what follows them, in bytes.
struct GgufPlace {
  int64_t numbers, rest;
};

// Of block `index` of `count` in a row; `numbers` and `rest` are the bytes of each.
constexpr GgufPlace gguf_place(int64_t numbers, int64_t rest, int64_t count, int64_t index) {
  const int64_t second = index % 2, first = index - second, blocks = count - first == 1 ? 1 : 2;
  const int64_t begin = first * (numbers + rest);
  return {begin + second * numbers, begin + blocks * numbers + second * rest};
}

// Writes `rows` rows (16 or fewer: zeros then follow) of `columns` columns to a panel.
void write_panel(GgufType type, const uint8_t* blocks, int rows, int64_t columns, uint8_t* panel);

// Block `index` of row `row` of a panel.
void read_panel_unit(GgufType type, const uint8_t* panel, int row, int64_t columns, int64_t index,
                     GgufUnit* unit);

}  // namespace rtp_llm::cpu

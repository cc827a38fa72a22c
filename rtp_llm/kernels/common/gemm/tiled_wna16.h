// SPDX-License-Identifier: Apache-2.0
// Arguments of products with integer weights of 4 or 8 bits in groups of columns, packed in tiles
// for matrix instructions of 16-bit floats: w = scale * (code - zero).
//
// A unit is what 32 lanes read with 16 bytes each: codes of 8 rows, each of which four lanes share.
// A unit has 128 columns of 4 bits, or 64 of 8 bits; a k-block has 128. Of 32 columns at a time
// lane t of the four has the pairs that begin at columns 2t, 2t + 8, 2t + 16 and 2t + 24.
// rtp_llm/ops/gemm/tiled_wna16_layout.py packs them.
#pragma once

#include "rtp_llm/kernels/common/gemm/skinny_linear.h"

namespace rtp_llm {

constexpr int kWnaColumns = 128;  // of a k-block; the columns of a weight are whole k-blocks
constexpr int kWnaOutputs = 16;   // of which a weight's rows are a multiple
constexpr int kWnaUnit = 512;     // bytes
constexpr int kWnaUnitRows = 8;
constexpr int kWnaChunk = 32;  // columns, the shortest group

struct TiledWna16Args {
  SkinnyLinearArgs linear;  // without its weight; ends but kFloat
  const uint8_t* codes;     // [k-blocks, outputs / 8, units of a k-block, 32, 16]
  const void* scale;        // 16-bit [k_blocks / k_blocks_of_group, outputs, groups]
  const uint8_t* zero;      // of the same shape; null: 8, or 128 of 8 bits, everywhere
  int bits;
  int groups;             // of a k-block: 1, 2 or 4
  int k_blocks_of_group;  // 1 unless there is one group
  bool half_scale;        // scales are float16, else bfloat16
};
using TiledWna16LinearArgs = TiledWna16Args;
using TiledWna16AddArgs = TiledWna16Args;

}  // namespace rtp_llm

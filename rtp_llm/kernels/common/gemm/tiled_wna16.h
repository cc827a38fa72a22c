// SPDX-License-Identifier: Apache-2.0
// Arguments of products with integer weights of 4 to 8 bits in groups of columns, packed in tiles
// for matrix instructions of 16-bit floats: w = scale * (code - zero), with whole zero points, or
// w = scale * (code - half of the codes) + zero, with floats.
//
// A unit is what 32 lanes read with 16 bytes each: codes of 8 rows, each of which four lanes share.
// A unit has 128 columns of 4 bits, or 64 of 8 bits; a k-block has 128. Of 32 columns at a time
// lane t of the four has the pairs that begin at columns 2t, 2t + 8, 2t + 16 and 2t + 24. Codes of
// 5 or 6 bits have the low 4 in a unit; 4 or 8 bytes of each lane with the others follow it.
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
  const uint8_t* codes;     // [k-blocks, outputs / 8, 128 * bits]
  const void* scale;        // 16-bit [k_blocks / k_blocks_of_group, outputs, groups]
  const uint8_t* zero;      // of the same shape; null: half of the codes are negative everywhere
  int bits;                 // 4, 5, 6 or 8
  int groups;               // of a k-block: 1, 2, 4 or 8
  int k_blocks_of_group;    // 1 unless there is one group
  bool half_scale;          // scales are float16, else bfloat16
  bool float_zero;          // zero points are floats as the scales are
};
using TiledWna16LinearArgs = TiledWna16Args;
using TiledWna16AddArgs = TiledWna16Args;
using TiledWna16FloatArgs = TiledWna16Args;

// Rows of such a weight: out[t] = weight[ids[t]].
struct TiledWna16EmbeddingArgs {
  TiledWna16Args weight;  // of `linear` only columns and outputs
  const int32_t* ids;     // [count]
  void* out;              // [count, columns]
  int64_t count;
  DType dtype;  // of out
};

}  // namespace rtp_llm

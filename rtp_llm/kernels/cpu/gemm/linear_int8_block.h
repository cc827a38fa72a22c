// SPDX-License-Identifier: Apache-2.0
// What linear_int8.cc hands to the kernels of one instruction set.
#pragma once

#include "rtp_llm/kernels/cpu/gemm/linear_int8.h"

namespace rtp_llm::cpu {

constexpr int kInt8Steps = kInt8GroupColumns / 4;

// A group of a tile of quantised x, words of 32 bits: for each step the 4 bytes of each row, then
// for each row -128 times the sum of its numbers, then for each row its scale.
constexpr int kInt8GroupWords = kInt8Steps + 2;

// Some rows of x in the form of the kernels, in tiles of nearly equal height.
struct Int8LinearBlock {
  void* panel;  // words of 32 bits, aligned to 64 bytes
  // The last weight block filled up to 16 rows, when it has fewer.
  const uint8_t* last_weight;
  const float* last_scale;
  int64_t first;
  int rows, tiles;

  int tile_begin(int tile) const { return rows * tile / tiles; }
};

struct Int8LinearKernels {
  int tile_rows;
  int group_words;  // of a row in the panel
  void (*pack)(const Int8LinearArgs&, const Int8LinearBlock&, int tile);
  // All rows of the block by weight rows [16 * first, 16 * last) below n.
  void (*multiply)(const Int8LinearArgs&, const Int8LinearBlock&, int64_t first, int64_t last);
};

namespace scalar {
extern const Int8LinearKernels kInt8LinearKernels, kW8A8Int8LinearKernels;
}
namespace avx2 {
extern const Int8LinearKernels kInt8LinearKernels, kW8A8Int8LinearKernels;
}
namespace avx512 {
extern const Int8LinearKernels kInt8LinearKernels, kW8A8Int8LinearKernels;
}
namespace avx512_vnni {
extern const Int8LinearKernels kInt8LinearKernels, kW8A8Int8LinearKernels;
}

}  // namespace rtp_llm::cpu

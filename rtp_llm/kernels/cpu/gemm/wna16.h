// SPDX-License-Identifier: Apache-2.0
// Products with integer weights of 4 or 8 bits in groups, of one weight or of sorted experts.
//
// x is quantised as it comes, with a scale for every 32 or 64 columns of a row, so that products
// are sums of whole numbers, from which the zero point times the sum of x is taken. These are
// exact; scaled sums are added in order, in float32: a row of x gives the same bits in every batch.
#pragma once

#include "rtp_llm/kernels/common/gemm/wna16.h"
#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm::cpu {

void wna16_linear(const Wna16LinearArgs& args, const ParallelFor& parallel);
void wna16_grouped_linear(const Wna16LinearArgs& args, const ParallelFor& parallel);

// Rows of x, of one expert, that meet weights together.
struct Wna16Tile {
  int64_t first;
  int rows, expert;
};

// What one instruction set has for weights of 4 or 8 bits.
struct Wna16Kernels {
  int tile_rows;    // most rows of a tile
  int pass_blocks;  // weight blocks that meet all tiles before the next ones are read
  // Quantises the rows of a tile to parts() * (part / 4 + 2) words each.
  void (*pack)(const Wna16LinearArgs&, const Wna16Tile&, int32_t* words);
  // Tiles of one expert by weight blocks [block, block + pass_blocks); words are those of the first
  // tile, and those of the others follow.
  void (*multiply)(const Wna16LinearArgs&, const Wna16Tile* tiles, int64_t count,
                   const int32_t* words, int64_t block);
};

namespace scalar {
extern const Wna16Kernels kWna16Kernels4, kWna16Kernels8;
}
namespace avx2 {
extern const Wna16Kernels kWna16Kernels4, kWna16Kernels8;
}
namespace avx512 {
extern const Wna16Kernels kWna16Kernels4, kWna16Kernels8;
}
namespace avx512_vnni {
extern const Wna16Kernels kWna16Kernels4, kWna16Kernels8;
}

}  // namespace rtp_llm::cpu

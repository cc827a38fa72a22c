// SPDX-License-Identifier: Apache-2.0
// What linear.cc hands to the kernels of one instruction set.
#pragma once

#include "rtp_llm/kernels/cpu/gemm/linear.h"

namespace rtp_llm::cpu {

// Some rows of x, packed. They are cut into tiles of nearly equal height, at most `tile_rows` of
// the kernels; a tile lies in `panel` as the kernels read it: for each step of k the elements of
// all its rows, zeros past k.
struct LinearBlock {
  void* panel;  // aligned to 64 bytes
  int64_t first;
  int rows, tiles;

  int tile_begin(int tile) const { return rows * tile / tiles; }
};

struct LinearKernels {
  int tile_rows;   // rows of x that meet a weight row in registers
  int group_rows;  // weight rows whose sums are completed together
  int64_t (*panel_row_bytes)(const LinearArgs&);
  void (*pack)(const LinearArgs&, const LinearBlock&);
  // All rows of the block by weight rows [first * group_rows, last * group_rows) below n.
  void (*multiply)(const LinearArgs&, const LinearBlock&, int64_t first, int64_t last);
};

namespace scalar {
extern const LinearKernels kLinearKernels;
}
namespace avx2 {
extern const LinearKernels kLinearKernels;
}
namespace avx512 {
extern const LinearKernels kLinearKernels;
}
namespace avx512_bf16 {
extern const LinearKernels kLinearKernels;
}

}  // namespace rtp_llm::cpu

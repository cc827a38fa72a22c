// SPDX-License-Identifier: Apache-2.0
// The kernel of grouped_linear, whatever multiplies: a block for a tile of rows and of columns.
#pragma once

#include "rtp_llm/kernels/common/moe/moe.h"
#include "rtp_llm/kernels/cuda/gpu.h"

namespace rtp_llm::cuda {

constexpr int kProductRows = 32;     // of a tile
constexpr int kProductColumns = 64;  // of a tile
constexpr int kProductThreads = 256;

// Rows [first, last) of a tile, all of `expert`, times the weight's rows from `column` on.
struct ExpertRows {
  int64_t first, last;
  int expert;
  int64_t column;
};

// The expert of row `row`: among experts with rows, the last one with an offset not above it.
__device__ inline int expert_of(const GroupedLinearArgs& args, int64_t row) {
  int low = 0;
  int high = args.experts;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (args.offsets[middle] <= row ? low : high) = middle;
  }
  return low;
}

// One tile of rows may hold several experts, one after another.
// Products::multiply takes those of one.
template <class Products>
__global__ void __launch_bounds__(kProductThreads) grouped_linear_kernel(GroupedLinearArgs args) {
  const int64_t all = args.offsets[args.experts];
  const int64_t end = min((int64_t{blockIdx.y} + 1) * kProductRows, min(all, args.rows));
  int64_t first = int64_t{blockIdx.y} * kProductRows;
  while (first < end) {
    const int expert = expert_of(args, first);
    const int64_t last = min(end, int64_t{args.offsets[expert + 1]});
    Products::multiply(args, {first, last, expert, int64_t{blockIdx.x} * kProductColumns});
    first = last;
  }
}

}  // namespace rtp_llm::cuda

// SPDX-License-Identifier: Apache-2.0
// Which rows of q belong to a group, as the device reads it, and how many tiles that makes.
#pragma once

#include "rtp_llm/kernels/common/fp8/fp8_blocks.h"
#include "rtp_llm/kernels/common/fp8/fp8_gemm.h"
#include "rtp_llm/kernels/cuda/group_tiles.h"

namespace rtp_llm::cuda {

// Rows first to end of a plane [M, K] of q.
struct GroupRows {
  int plane, first, end;

  __device__ int count() const { return end - first; }
};

// Never outside of q, whatever the indices are.
__device__ inline GroupRows rows_of(const Fp8GemmArgs& args, int group) {
  const int rows = static_cast<int>(args.rows);
  if (args.form == Fp8Form::kMasked) return {group, 0, max(0, min(args.indices[group], rows))};
  if (args.form != Fp8Form::kRagged) return {0, 0, rows};
  constexpr int kUnit = static_cast<int>(kFp8RowUnit);
  const int first = max(0, min(args.starts[group], rows)) / kUnit * kUnit;
  return {0, first, first + max(0, min(args.indices[group], rows - first))};
}

// The tiles of kRows rows that a group has, once for each tile of outputs.
template <int kRows>
__device__ inline int tiles_of(const Fp8GemmArgs& args, int group, int output_tiles) {
  return (rows_of(args, group).count() + kRows - 1) / kRows * output_tiles;
}

}  // namespace rtp_llm::cuda

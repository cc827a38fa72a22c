// SPDX-License-Identifier: Apache-2.0
// Which rows of q belong to a group, and the tiles of all groups, as the device reads them.
#pragma once

#include "rtp_llm/kernels/common/fp8/fp8_blocks.h"
#include "rtp_llm/kernels/common/fp8/fp8_gemm.h"
#include "rtp_llm/kernels/cuda/gpu.h"

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

constexpr int kMaxGroups = 1024;

// The tiles of all groups, numbered consecutively group by group.
class GroupTiles {
 public:
  // Tiles of kRows rows, once for each tile of outputs. Called by every thread of the block; `ends`
  // is shared memory for kMaxGroups numbers.
  template <int kRows, int kThreads>
  __device__ void init(const Fp8GemmArgs& args, int output_tiles, int* ends) {
    groups_ = static_cast<int>(args.groups);
    ends_ = ends;
    for (int group = thread_index(); group < groups_; group += kThreads) {
      ends[group] = (rows_of(args, group).count() + kRows - 1) / kRows * output_tiles;
    }
    __syncthreads();
    if (thread_index() < kGroup) add_up(ends);
    __syncthreads();
  }

  // The group of a tile, and its index within the group; false past the last tile. Numbers only
  // grow.
  __device__ bool find(int number, int& group, int& within) {
    while (group_ < groups_ && number >= ends_[group_]) ++group_;
    if (group_ == groups_) return false;
    group = group_;
    within = number - (group_ > 0 ? ends_[group_ - 1] : 0);
    return true;
  }

 private:
  // Called by one warp.
  __device__ void add_up(int* ends) const {
    int before = 0;
    for (int first = 0; first < groups_; first += kGroup) {
      const int group = first + thread_index();
      int sum = group < groups_ ? ends[group] : 0;
      for (int step = 1; step < kGroup; step *= 2) {
        const int other = __shfl_up_sync(~0U, sum, step);
        if (thread_index() >= step) sum += other;
      }
      sum += before;
      if (group < groups_) ends[group] = sum;
      before = __shfl_sync(~0U, sum, kGroup - 1);
    }
  }

  const int* ends_ = nullptr;
  int groups_ = 0, group_ = 0;
};

}  // namespace rtp_llm::cuda

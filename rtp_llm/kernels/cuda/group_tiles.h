// SPDX-License-Identifier: Apache-2.0
// The tiles of products of several groups, such as experts, of which blocks take one after another.
#pragma once

#include "rtp_llm/kernels/cuda/gpu.h"

namespace rtp_llm::cuda {

constexpr int kMaxGroups = 1024;

// The tiles of all groups, numbered consecutively group by group.
class GroupTiles {
 public:
  // `tiles_of` says how many tiles a group has. Called by every thread of the block; `ends` is
  // shared memory for kMaxGroups numbers.
  template <int kThreads, class TilesOf>
  __device__ void init(int groups, int* ends, const TilesOf& tiles_of) {
    groups_ = groups;
    ends_ = ends;
    for (int group = thread_index(); group < groups_; group += kThreads) {
      ends[group] = tiles_of(group);
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

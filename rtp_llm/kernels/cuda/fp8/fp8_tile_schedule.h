// SPDX-License-Identifier: Apache-2.0
// Which tile a cluster of blocks computes next: of the whole product, or of all groups.
#pragma once

#include "rtp_llm/kernels/common/fp8/fp8_gemm.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_groups.h"

namespace rtp_llm::cuda {

struct GemmTile {
  int group;          // of the weight; -1: nothing to do
  int rows_group;     // of q
  int row, last_row;  // of q: the tile's first row, and the end of the group's rows
  int output;         // of this block
};

// The tiles of clusters, in an order that keeps what is near together in the L2 cache: eight tiles
// of rows for every pair of tiles of the weight.
template <class Shape, Fp8Form form>
class TileSchedule {
 public:
  // Called by every thread of the block.
  __device__ TileSchedule(const Fp8GemmArgs& args, int rank) : args_(args), rank_(rank) {
    pairs_ = static_cast<int>((args.outputs + 2 * Shape::kOutputs - 1) / (2 * Shape::kOutputs));
    if constexpr (kGrouped) {
      __shared__ int ends[kMaxGroups];
      const auto tiles = [&](int group) { return tiles_of<Shape::kRows>(args, group, pairs_); };
      tiles_.template init<Shape::kThreads>(static_cast<int>(args.groups), ends, tiles);
    }
  }

  // The tile with this number; false past the last one. Numbers only grow.
  __device__ bool find(int number, GemmTile& tile) {
    if constexpr (kGrouped) {
      int within = 0;
      if (!tiles_.find(number, tile.group, within)) return false;
      const GroupRows rows = rows_of(args_, tile.group);
      const int row_tiles = (rows.count() + Shape::kRows - 1) / Shape::kRows;
      tile.rows_group = rows.plane;
      tile.row = rows.first + within % row_tiles * Shape::kRows;
      tile.last_row = rows.end;
      set_output(tile, within / row_tiles);
      return true;
    }
    const int row_tiles = static_cast<int>((args_.rows + Shape::kRows - 1) / Shape::kRows);
    if (number >= row_tiles * pairs_) return false;
    constexpr int kNear = 8;
    const int section = number / (kNear * pairs_), within = number % (kNear * pairs_);
    const int near = min(kNear, row_tiles - section * kNear);
    tile.row = (section * kNear + within % near) * Shape::kRows;
    tile.rows_group = 0;
    tile.last_row = static_cast<int>(args_.rows);
    set_output(tile, within / near);
    tile.group = 0;
    if constexpr (form == Fp8Form::kContiguous) {
      const int group = args_.indices[tile.row];
      tile.group = group < args_.groups ? group : -1;
    }
    return true;
  }

 private:
  static constexpr bool kGrouped = form == Fp8Form::kMasked || form == Fp8Form::kRagged;

  __device__ void set_output(GemmTile& tile, int pair) const {
    tile.output = (pair * Shape::kCluster + rank_) * Shape::kOutputs;
  }

  const Fp8GemmArgs& args_;
  int rank_, pairs_;
  GroupTiles tiles_;
};

}  // namespace rtp_llm::cuda

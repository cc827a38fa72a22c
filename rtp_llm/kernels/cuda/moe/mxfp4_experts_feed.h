// SPDX-License-Identifier: Apache-2.0
// Tiles of experts of many rows in MXFP4, and the thread that brings their operands. Only for
// sm_90a.
#pragma once

#include "rtp_llm/kernels/cuda/group_tiles.h"
#include "rtp_llm/kernels/cuda/k_block_ring.h"
#include "rtp_llm/kernels/cuda/moe/mxfp4_experts_tile.h"

namespace rtp_llm::cuda {

// W warpgroups multiply B times 64 weight rows each by J tokens.
template <int W, int B, int J>
struct ManyRowsShape {
  static constexpr int kTokens = J;
  static constexpr int kRowBlocks = B;
  static constexpr int kRows = W * B * 64;
  static constexpr int kPanels = kRows / kWeightRows;
  static constexpr int kConsumers = W * hopper::kWarpgroup;
  static constexpr int kThreads = kConsumers + hopper::kWarpgroup;
  // Registers of a copying and a multiplying thread: together as many as equal threads would have.
  static constexpr int kFewRegisters = 40;
  static constexpr int kManyRegisters = 232;
  static_assert(W == 2, "of two warpgroups");
  // A stage: tokens, codes, scales.
  static constexpr int kCodesAt = J * kRowBytes;
  static constexpr int kScalesAt = kCodesAt + kRows * kStepColumns / 2;
  static constexpr int kWeightBytes = kPanels * (kStepBytes + kStepScales);
  static constexpr int kStageBytes = (kCodesAt + kWeightBytes + 1023) / 1024 * 1024;
  // Results on their way to memory, of each warpgroup.
  static constexpr int kOutTokens = 32;
  static constexpr int kPitch = B * 128 + 16;  // bytes of a token; the 16 are for the banks
  static constexpr int kOutBytes = kOutTokens * kPitch;
  static constexpr int kStages = (kRingBytes - W * kOutBytes - kMaxGroups * 4) / kStageBytes;
  static constexpr int kBytes = 1024 + kStages * kStageBytes + W * kOutBytes;
};

struct ManyRowsMaps {
  CUtensorMap tokens;  // [1, entries, k]: boxes of a tile's entries by a step's columns
  CUtensorMap codes;   // [panels of all experts, steps, 256] words: boxes of a tile's panels
  CUtensorMap scales;  // [panels of all experts, steps, 16] words
};

struct ManyRowsTile {
  int expert;
  int row;         // of the weight
  int first, end;  // entries
};

// The tiles of all experts, of which a block takes every gridDim.x-th one. Tiles of the same weight
// rows and up to 16 neighbouring tiles of entries follow each other.
template <class Shape>
class ManyRowsSchedule {
 public:
  // Called by every thread of the block; `ends` is shared memory for kMaxGroups numbers.
  __device__ ManyRowsSchedule(const Mxfp4ExpertsArgs& args, int* ends) : args_(args) {
    row_tiles_ = static_cast<int>((args.n + Shape::kRows - 1) / Shape::kRows);
    tiles_.template init<Shape::kThreads>(
        args.experts, ends, [&](int expert) { return token_tiles(expert) * row_tiles_; });
  }

  // The tile with this number; false past the last one. Numbers only grow.
  __device__ bool find(int number, ManyRowsTile& tile) {
    constexpr int kTogether = 16;
    int in_expert = 0;
    if (!tiles_.find(number, tile.expert, in_expert)) return false;
    const int set = in_expert / (kTogether * row_tiles_);
    const int in_set = in_expert % (kTogether * row_tiles_);
    const int width = min(kTogether, token_tiles(tile.expert) - set * kTogether);
    const int tokens = set * kTogether + in_set % width;
    tile.row = in_set / width * Shape::kRows;
    tile.first = args_.offsets[tile.expert] + tokens * Shape::kTokens;
    tile.end = min(args_.offsets[tile.expert + 1], tile.first + Shape::kTokens);
    return true;
  }

 private:
  __device__ int token_tiles(int expert) const {
    const int entries = args_.offsets[expert + 1] - args_.offsets[expert];
    return (entries + Shape::kTokens - 1) / Shape::kTokens;
  }

  const Mxfp4ExpertsArgs& args_;
  int row_tiles_;
  GroupTiles tiles_;
};

// The one thread that copies.
template <class Shape>
class ManyRowsLoader {
 public:
  __device__ ManyRowsLoader(const KBlockRing<Shape>& ring, const ManyRowsMaps& maps,
                            const Mxfp4ExpertsArgs& args)
      : ring_(ring), maps_(maps), args_(args) {}

  __device__ void run(const ManyRowsTile& tile) {
    const int steps = static_cast<int>(args_.k / kStepColumns);
    const int panel = static_cast<int>((tile.expert * args_.n + tile.row) / kWeightRows);
    for (int step = 0; step < steps; ++step, place_.next()) {
      const uint32_t stage = ring_.k_block(place_.stage);
      const uint32_t full_barrier = ring_.full_barrier(place_.stage);
      hopper::wait(ring_.empty_barrier(place_.stage), place_.phase ^ 1);
      hopper::arrive_and_expect(full_barrier, Shape::kCodesAt + Shape::kWeightBytes);
      hopper::tma_load(stage, &maps_.tokens, full_barrier, step * kStepColumns, tile.first, 0);
      hopper::tma_load(stage + Shape::kCodesAt, &maps_.codes, full_barrier, 0, step, panel);
      hopper::tma_load(stage + Shape::kScalesAt, &maps_.scales, full_barrier, 0, step, panel);
    }
  }

 private:
  const KBlockRing<Shape>& ring_;
  const ManyRowsMaps& maps_;
  const Mxfp4ExpertsArgs& args_;
  RingPlace<Shape::kStages> place_;
};

}  // namespace rtp_llm::cuda

// SPDX-License-Identifier: Apache-2.0
// Streams of weights (fp8_stream.h) for groups of rows, masked or contiguous: blocks are persistent
// and take one tile after another, without a gap between their copies. Only for sm_90a.
#pragma once

#include "rtp_llm/kernels/cuda/fp8/fp8_groups.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_stream.h"

namespace rtp_llm::cuda {

// The order of tiles: for each tile of rows, the group's tiles of tokens are consecutive.
template <class Shape>
class MaskedSchedule {
 public:
  // Called by every thread of the block.
  __device__ MaskedSchedule(const Fp8GemmArgs& args, int* ends) : args_(args) {
    const int tiles = static_cast<int>((args.outputs + Shape::kRows - 1) / Shape::kRows);
    tiles_.init<Shape::kThreads>(static_cast<int>(args.groups), ends, [&](int group) {
      return tiles_of<Shape::kTokens>(args, group, tiles);
    });
  }

  // The tile with this number; false past the last one. Numbers only grow.
  __device__ bool find(int number, StreamTile& tile) {
    int within = 0;
    if (!tiles_.find(number, tile.group, within)) return false;
    const GroupRows rows = rows_of(args_, tile.group);
    const int token_tiles = (rows.count() + Shape::kTokens - 1) / Shape::kTokens;
    tile.row = within / token_tiles * Shape::kRows;
    tile.plane = rows.plane;
    tile.token = rows.first + within % token_tiles * Shape::kTokens;
    tile.end = rows.end;
    tile.first = 0;
    tile.last = static_cast<int>(args_.columns / kChannels);
    tile.set_rotation(tile.row / Shape::kRows);
    tile.once = token_tiles == 1;
    return true;
  }

 private:
  const Fp8GemmArgs& args_;
  GroupTiles tiles_;
};

// Bytes between tokens, and all of a warpgroup's [token][row].
template <class Shape>
constexpr int kOwnPitch = 64 * Shape::kMSubTiles + 8;
template <class Shape>
constexpr int kOwnStaging = Shape::kTokens * kOwnPitch<Shape> * 2;
template <class Shape>
constexpr int kStagingBytes = kOwnStaging<Shape> * (Shape::kConsumers / hopper::kWarpgroup);

// A warpgroup's sums through its own shared memory to the result.
template <class Shape>
__device__ inline void store_masked(const Fp8GemmArgs& args, const StreamTile& tile,
                                    const StreamProduct<Shape>& product, uint16_t* staging) {
  constexpr int kPitch = kOwnPitch<Shape>, kOwnRows = 64 * Shape::kMSubTiles,
                kVectors = kOwnRows / 8;
  const int thread = thread_index() % hopper::kWarpgroup;
  const int warpgroup = thread_index() / hopper::kWarpgroup;
  hopper::sync(1 + warpgroup, hopper::kWarpgroup);  // the tile before was stored
#pragma unroll
  for (int i = 0; i < Shape::kTokens / 2 * Shape::kMSubTiles; ++i) {
    constexpr int kSums = Shape::kTokens / 2;
    const int sub_tile = i / kSums, at = product.token(i % kSums) * kPitch + product.own_row();
    staging[at + sub_tile * 64 + i % 4 / 2 * 8] =
        from_float<BFloat16>(product.sum(sub_tile, i % kSums)).bits;
  }
  hopper::sync(1 + warpgroup, hopper::kWarpgroup);
  const int first_row = tile.row + warpgroup * kOwnRows;
  const int left = min(Shape::kTokens, tile.end - tile.token);
  auto* const out = static_cast<uint16_t*>(args.out) +
                    (tile.plane * args.rows + tile.token) * args.outputs + first_row;
  for (int unit = thread; unit < left * kVectors; unit += hopper::kWarpgroup) {
    const int token = unit / kVectors, row = unit % kVectors * 8;
    if (first_row + row >= args.outputs) continue;
    *reinterpret_cast<uint4*>(out + token * args.outputs + row) =
        *reinterpret_cast<const uint4*>(staging + token * kPitch + row);
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    stream_masked(const __grid_constant__ StreamMaps maps, const Fp8GemmArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  __shared__ uint64_t barriers[2 * Shape::kStages];
  __shared__ int ends[kMaxGroups];
  const StreamRing<Shape> ring(memory, barriers);
  if (thread_index() == Shape::kConsumers) ring.init_barriers();
  wait_for_previous();
  MaskedSchedule<Shape> schedule(args, ends);
  let_next_start();
  StreamTile tile = {};
  int number = static_cast<int>(blockIdx.x);
  const int step = static_cast<int>(gridDim.x);
  if (thread_index() >= Shape::kConsumers) {
    if (Shape::kHeavy) hopper::give_registers<Shape::kFewRegisters>();
    if (thread_index() == Shape::kConsumers) {
      StreamLoader<Shape> loader(ring, maps);
      for (; schedule.find(number, tile); number += step) loader.run(tile);
    }
    return;
  }
  if (Shape::kHeavy) hopper::take_registers<Shape::kManyRegisters>();
  auto* const staging = reinterpret_cast<uint16_t*>(
      ring.memory + Shape::kStages * (Shape::kStageBytes + Shape::kScaleBytes) +
      thread_index() / hopper::kWarpgroup * kOwnStaging<Shape>);
  StreamProduct<Shape> product(ring, args);
  for (; schedule.find(number, tile); number += step) {
    product.run(tile);
    store_masked<Shape>(args, tile, product, staging);
  }
#endif
}

}  // namespace rtp_llm::cuda

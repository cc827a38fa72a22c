// SPDX-License-Identifier: Apache-2.0
// Products of few rows ("tokens") with a weight as streams of the weight, which is the tall operand
// of the matrix instruction (swap-AB). Only for sm_90a.
//
// One warp brings k-blocks of 64 columns through a deep ring in shared memory: rows of the weight
// and the tokens. Warpgroups multiply 64 rows of the weight each. The weight's first k-blocks are
// under way before the kernel in front has ended.
#pragma once

#include "rtp_llm/kernels/common/gemm/skinny_linear.h"
#include "rtp_llm/kernels/cuda/gemm/gate_activation.h"
#include "rtp_llm/kernels/cuda/k_block_ring.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/pack.h"

namespace rtp_llm::cuda {

// J tokens and R rows of the weight in a tile. As many k-blocks are under way as a multiprocessor
// has room for.
template <int J, int R>
struct LinearStreamShape {
  static constexpr int kTokens = J;
  static constexpr int kRows = R;
  static constexpr int kConsumers = R / 64 * hopper::kWarpgroup;
  static constexpr int kThreads = kConsumers + kGroup;
  static constexpr int kWeightBytes = R * kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + J * kRowBytes;
  static constexpr int kStages = kRingBytes / kStageBytes;
  static constexpr int kPitch = R + 4;  // of sums in shared memory, for its banks
  static constexpr int kBytes = 1024 + kStages * kStageBytes;
  static_assert(J * kPitch * 4 <= kStages * kStageBytes, "sums take the place of the ring");
  static_assert(kBytes + 2 * kStages * 8 <= kBlockBytes, "the barriers lie next to the ring");
};

constexpr int kStreamColumns = kRowBytes / 2;  // of a k-block, in 16 bits each

// What a copy brings: of the weight as [planes, rows, columns] a tile's rows in all planes, and a
// tile's tokens; both of a k-block.
struct LinearStreamMaps {
  CUtensorMap weight, tokens;
};

// A gate's rows and its factors' rows lie half of the weight apart; a tile has as many of each.
__host__ __device__ inline int planes_of(LinearEnd end) { return end == LinearEnd::kGate ? 2 : 1; }

struct LinearStreamTile : KBlockRange {
  static constexpr int token = 0;  // the first one
  int row;                         // in each plane

  __device__ int tokens(const SkinnyLinearArgs& args) const { return static_cast<int>(args.rows); }
};

// What this block multiplies: a share of the k-blocks of its cluster's tile.
template <class Shape>
__device__ inline LinearStreamTile stream_tile(const SkinnyLinearArgs& args, int rank, int split) {
  const int number = static_cast<int>(blockIdx.x) / split;
  const int k_blocks = static_cast<int>(args.columns / kStreamColumns);
  LinearStreamTile tile = {};
  tile.row = number * (Shape::kRows / planes_of(args.end));
  tile.first = k_blocks * rank / split;
  tile.last = k_blocks * (rank + 1) / split;
  tile.set_rotation(number);
  return tile;
}

// The one thread that copies. The weight was written long ago: its first k-blocks need no kernel in
// front to have ended.
template <class Shape>
__device__ inline void load_tile(const KBlockRing<Shape>& ring, const LinearStreamMaps& maps,
                                 const LinearStreamTile& tile) {
  const auto load_weight = [&](int number, int stage) {
    hopper::arrive_and_expect(ring.full_barrier(stage), Shape::kStageBytes);
    hopper::tma_load(ring.k_block(stage), &maps.weight, ring.full_barrier(stage),
                     tile.k_block(number) * kStreamColumns, tile.row, 0, hopper::kLeaveFirst);
  };
  const int early = min(tile.k_blocks(), Shape::kStages);
  for (int number = 0; number < early; ++number) load_weight(number, number);
  wait_for_previous();
  RingPlace<Shape::kStages> place;
  for (int number = 0; number < tile.k_blocks(); ++number, place.next()) {
    const int stage = place.stage;
    if (number >= early) {
      hopper::wait(ring.empty_barrier(stage), place.phase ^ 1);
      load_weight(number, stage);
    }
    hopper::tma_load(ring.k_block(stage) + Shape::kWeightBytes, &maps.tokens,
                     ring.full_barrier(stage), tile.k_block(number) * kStreamColumns, 0, 0,
                     hopper::kStay);
  }
}

// A warpgroup: the sums of 64 rows of the tile, to [token][row of the tile] in place of the ring.
template <class T, class Shape>
__device__ inline void multiply_rows(const KBlockRing<Shape>& ring, int k_blocks) {
  constexpr int kSums = Shape::kTokens / 2, kStep = 32 / hopper::kMatrixUnit;
  const int warpgroup = thread_index() / hopper::kWarpgroup, lane = thread_index() % kGroup;
  const uint64_t rows = hopper::matrix(ring.k_block(0) + warpgroup * 64 * kRowBytes, 16);
  const uint64_t tokens = hopper::matrix(ring.k_block(0) + Shape::kWeightBytes, 16);
  const auto release = [&](int stage) {
    if (lane == 0) hopper::arrive(ring.empty_barrier(stage));
  };
  float sums[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) sums[i] = 0.0f;
  RingPlace<Shape::kStages> place;
  int last = -1;
  for (int number = 0; number < k_blocks; ++number, place.next()) {
    const uint64_t offset = place.stage * (Shape::kStageBytes / hopper::kMatrixUnit);
    hopper::wait(ring.full_barrier(place.stage), place.phase);
    hopper::begin_products();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      hopper::multiply(sums, rows + offset + k * kStep, tokens + offset + k * kStep, true, T{});
    }
    hopper::end_products();
    hopper::wait_for_products<1>();  // all but these
    if (last >= 0) release(last);
    last = place.stage;
  }
  hopper::wait_for_products<0>();
  hopper::pin(sums);
  hopper::sync(1, Shape::kConsumers);  // the ring is no longer read
  // A thread has rows lane / 4 and the one 8 below of its warp's 16, and tokens 8 j + 2 (lane % 4)
  // and the next.
  auto* const to = reinterpret_cast<float*>(ring.memory);
  const int row = thread_index() / kGroup * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
    to[token * Shape::kPitch + row + i % 4 / 2 * 8] = sums[i];
  }
}

template <class T>
__device__ inline void add_bias(const SkinnyLinearArgs& args, int64_t row, float (&to)[4]) {
  if (args.bias == nullptr) return;
  const T* const bias = static_cast<const T*>(args.bias) + row;
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] += to_float(bias[i]);
}

// Adds up what the blocks of the cluster have in shared memory at `sums`, and stores a share.
// `adds`: whether the kernel has the end kAdd.
template <class T, class Shape, bool adds, bool gated, class Tile>
__device__ inline void store_share(const SkinnyLinearArgs& args, const Tile& tile, uint32_t sums,
                                   int rank, int split) {
  constexpr int kPlaneRows = gated ? Shape::kRows / 2 : Shape::kRows, kQuads = kPlaneRows / 4;
  const int64_t outputs = gated ? args.outputs / 2 : args.outputs;
  const int units = tile.tokens(args) * kQuads;
  for (int unit = rank * Shape::kConsumers + thread_index(); unit < units;
       unit += split * Shape::kConsumers) {
    const int token = unit / kQuads, in_tile = unit % kQuads * 4;
    const int64_t row = tile.row + in_tile;
    if (row >= outputs) continue;
    const uint32_t place = sums + (token * Shape::kPitch + in_tile) * 4;
    Pack<float, 4> total = __builtin_bit_cast(Pack<float, 4>, sum_of_blocks(place, split));
    add_bias<T>(args, row, total.element);
    if constexpr (gated) {
      auto factor =
          __builtin_bit_cast(Pack<float, 4>, sum_of_blocks(place + kPlaneRows * 4, split));
      add_bias<T>(args, outputs + row, factor.element);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        total.element[i] = activated(total.element[i], args.activation) * factor.element[i];
      }
    }
    const int64_t at = (tile.token + token) * args.out_stride + row;
    if (args.end == LinearEnd::kFloat) {
      store(static_cast<float*>(args.out) + at, total);
      continue;
    }
    T* const to = static_cast<T*>(args.out) + at;
    if (adds && args.end == LinearEnd::kAdd) {
#pragma unroll
      for (int i = 0; i < 4; ++i) total.element[i] += to_float(to[i]);
    }
    store(to, narrow<T>(total.element));
  }
}

// Waits for the sums of the cluster's other blocks, stores a share, and waits until the others have
// read what is here.
template <class T, class Shape, bool adds, class Tile>
__device__ inline void store_shares(const SkinnyLinearArgs& args, const Tile& tile, uint32_t sums,
                                    int rank, int split) {
  if (split > 1) {
    hopper::sync_cluster();
  } else {
    hopper::sync(1, Shape::kConsumers);
  }
  if (args.end == LinearEnd::kGate) {
    store_share<T, Shape, adds, true>(args, tile, sums, rank, split);
  } else {
    store_share<T, Shape, adds, false>(args, tile, sums, rank, split);
  }
  if (split > 1) hopper::meet_cluster();
}

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    stream_linear_kernel(const __grid_constant__ LinearStreamMaps maps, const SkinnyLinearArgs args,
                         const int split) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  __shared__ uint64_t barriers[2 * Shape::kStages];
  const KBlockRing<Shape> ring(memory, barriers);
  const int rank = static_cast<int>(blockIdx.x) % split;
  const auto tile = stream_tile<Shape>(args, rank, split);
  if (thread_index() == Shape::kConsumers) ring.init_barriers_for(Shape::kConsumers / kGroup);
  __syncthreads();
  let_next_start();
  if (thread_index() >= Shape::kConsumers) {
    if (thread_index() == Shape::kConsumers) load_tile<Shape>(ring, maps, tile);
    return;
  }
  multiply_rows<T, Shape>(ring, tile.k_blocks());
  wait_for_previous();
  store_shares<T, Shape, false>(args, tile, ring.stages, rank, split);
#else
  __trap();
#endif
}

}  // namespace rtp_llm::cuda

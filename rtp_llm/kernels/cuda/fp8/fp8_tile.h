// SPDX-License-Identifier: Apache-2.0
// FP8 GEMMs of many rows: tiles of 128 or 256 rows of q by 64 to 256 of the weight. Only for
// sm_90a.
//
// Clusters of two blocks work on neighbouring tiles of the weight; each brings half of the rows of
// q for both. A block's loader warp keeps a ring of k-blocks of 128 channels full, across tiles;
// two warpgroups multiply half of the rows each, a part of 64 at a time, and scale and add up after
// every k-block.
#pragma once

#include "rtp_llm/kernels/common/fp8/fp8_gemm.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_ring.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_tile_schedule.h"
#include "rtp_llm/kernels/cuda/transpose.h"

namespace rtp_llm::cuda {

// W sub-tiles of 64 rows of q for each of two warpgroups, S k-blocks under way, V sub-tiles of N
// rows of the weight.
template <int W, int S, int N = 128, int V = 1>
struct TileShape {
  static constexpr int kWarpgroups = 2;
  // Registers of a copying and a multiplying thread: together as many as equal threads would have.
  static constexpr int kFewRegisters = 40;
  static constexpr int kManyRegisters = 232;
  static constexpr int kMSubTiles = W;
  static constexpr int kNSubTiles = V;
  static constexpr int kParts = W * V;
  static constexpr int kStages = S;
  static constexpr int kRows = kWarpgroups * W * 64;
  static constexpr int kSubTileOutputs = N;
  static constexpr int kOutputs = V * N;
  static constexpr int kCluster = 2;
  static constexpr int kThreads = (kWarpgroups + 1) * hopper::kWarpgroup;
  static constexpr int kRowBytes = kRows * kChannels;
  static constexpr int kWeightBytes = kOutputs * kChannels;
  static constexpr int kScaleBytes = kRows * 4;
  static constexpr int kStageBytes = kRowBytes + kWeightBytes;
  static constexpr int kTransactionBytes = kStageBytes + kScaleBytes;
  static constexpr int kBytes = 1024 + S * (kStageBytes + kScaleBytes);
};

struct TileMaps {
  CUtensorMap weight;  // [G, N, K]: boxes of a tile's outputs x 128
  CUtensorMap rows;    // [G, M, K]: boxes of half a tile's rows x 128
  CUtensorMap scales;  // [G, K / 128, scale rows]: boxes of 1 x a tile's rows
};

template <class Shape>
struct TileRing : Fp8Ring<Shape> {
  using Fp8Ring<Shape>::Fp8Ring;

  __device__ uint32_t rows(int stage) const { return this->k_block(stage); }
  __device__ uint32_t weight(int stage) const { return rows(stage) + Shape::kRowBytes; }
  // Waits for the readers of both blocks of the cluster: a copy goes to both.
  __device__ void init_barriers() const {
    this->init_barriers_for(Shape::kCluster * Shape::kWarpgroups * hopper::kWarpgroup / kGroup);
  }
};

// The one thread that copies.
template <class Shape>
class TileLoader {
 public:
  __device__ TileLoader(const TileRing<Shape>& ring, const TileMaps& maps, int rank)
      : ring_(ring), maps_(maps), rank_(rank) {}

  __device__ void run(const GemmTile& tile, int k_blocks) {
    constexpr int kHalf = Shape::kRows / 2;
    constexpr uint16_t kBoth = 3;
    for (int k_block = 0; k_block < k_blocks; ++k_block) {
      const int stage = place_.stage;
      const uint32_t full_barrier = ring_.full_barrier(stage);
      hopper::wait(ring_.empty_barrier(stage), place_.phase ^ 1);
      hopper::arrive_and_expect(full_barrier, Shape::kTransactionBytes);
      hopper::tma_load_multicast(kBoth, ring_.rows(stage) + rank_ * kHalf * kChannels, &maps_.rows,
                                 full_barrier, k_block * kChannels, tile.row + rank_ * kHalf,
                                 tile.rows_group, hopper::kNoHint);
      hopper::tma_load(ring_.weight(stage), &maps_.weight, full_barrier, k_block * kChannels,
                       tile.output, tile.group, hopper::kNoHint);
      hopper::tma_load(ring_.scale(stage), &maps_.scales, full_barrier, tile.row, k_block,
                       tile.rows_group, hopper::kNoHint);
      place_.next();
    }
  }

 private:
  const TileRing<Shape>& ring_;
  const TileMaps& maps_;
  int rank_;
  RingPlace<Shape::kStages> place_;
};

// A warpgroup: 64 kMSubTiles rows of q, in parts of 64 rows by one sub-tile of the weight. A thread
// holds of a part the row lane / 4 of its warp's 16 and the one 8 below, and outputs
// 8 j + 2 (lane % 4) and the next.
//
// Between two products a warpgroup has as long as the other warpgroup's products last: what has to
// be known for the next one is computed while the last one runs, and without a lane's own values,
// so that it lies in uniform registers.
template <class Shape>
class TileProduct {
 public:
  static constexpr int kSums = Shape::kSubTileOutputs / 2;

  __device__ TileProduct(const TileRing<Shape>& ring, const Fp8GemmArgs& args)
      : ring_(ring), args_(args) {
    const int thread = thread_index() - hopper::kWarpgroup;
    const int warpgroup = __shfl_sync(~0U, thread / hopper::kWarpgroup, 0);
    const int first_row = warpgroup * 64 * Shape::kMSubTiles;
    lane_ = thread % kGroup;
    rows_ = hopper::matrix(ring.rows(0) + first_row * kChannels, 16);
    weight_ = hopper::matrix(ring.weight(0), 16);
    own_row_ = first_row + thread % hopper::kWarpgroup / kGroup * 16 + lane_ / 4;
  }

  __device__ void run(const GemmTile& tile, int k_blocks) {
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums_[part][i] = 0;
    }
    WeightScales weight_scales(args_, tile, k_blocks);
    if constexpr (Shape::kParts == 1) {
      run_overlapped(weight_scales, k_blocks);
    } else {
      run_parts(weight_scales, k_blocks);
    }
  }

  // Each four lanes of a row exchange their pairs, so that each has eight neighbouring outputs.
  __device__ void store(const GemmTile& tile) const {
    const int64_t first = tile.rows_group * args_.rows;
    auto* const out = static_cast<uint16_t*>(args_.out);
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile.row + own_row_ + part % Shape::kMSubTiles * 64 + half * 8;
#pragma unroll
        for (int j = 0; j < kSums / 4; j += 4) {
          uint32_t pairs[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float* const sums = sums_[part] + (j + i) * 4 + half * 2;
            pairs[i] = hopper::pair(sums[0], sums[1], BFloat16{});
          }
          transpose_four_lanes(pairs);
          const int output =
              tile.output + part / Shape::kMSubTiles * Shape::kSubTileOutputs + (j + lane_ % 4) * 8;
          if (row < tile.last_row && output < args_.outputs) {
            *reinterpret_cast<uint4*>(out + (first + row) * args_.outputs + output) = {
                pairs[0], pairs[1], pairs[2], pairs[3]};
          }
        }
      }
    }
  }

 private:
  // The scales of the weight's sub-tiles for one k-block after another, each requested a k-block
  // ahead.
  class WeightScales {
   public:
    __device__ WeightScales(const Fp8GemmArgs& args, const GemmTile& tile, int k_blocks)
        : k_blocks_(k_blocks) {
      const int tiles = static_cast<int>((args.outputs + kChannels - 1) / kChannels);
      const int row = min(tile.output / kChannels, tiles - 1);
      scales_ = args.weight_scales + (static_cast<int64_t>(tile.group) * tiles + row) * k_blocks;
      sub_tile_step_ = row + 1 < tiles ? k_blocks : 0;
      load();
    }
    __device__ void next() {
#pragma unroll
      for (int sub_tile = 0; sub_tile < Shape::kNSubTiles; ++sub_tile)
        now_[sub_tile] = coming_[sub_tile];
      if (++k_block_ < k_blocks_) load();
    }
    __device__ float of(int sub_tile) const { return now_[sub_tile]; }

   private:
    __device__ void load() {
#pragma unroll
      for (int sub_tile = 0; sub_tile < Shape::kNSubTiles; ++sub_tile) {
        coming_[sub_tile] = __ldg(scales_ + k_block_ + sub_tile * sub_tile_step_);
      }
    }

    const float* scales_;
    int k_blocks_, sub_tile_step_, k_block_ = 0;
    float now_[Shape::kNSubTiles], coming_[Shape::kNSubTiles];
  };

  // There are too few registers to overlap two k-blocks: the other warpgroup multiplies meanwhile.
  __device__ void run_parts(WeightScales& weight_scales, int k_blocks) {
    bool is_full = false;
    for (int k_block = 0; k_block < k_blocks; ++k_block) {
      weight_scales.next();
      if (!is_full) hopper::wait(ring_.full_barrier(pipe_read_.stage), pipe_read_.phase);
#pragma unroll
      for (int part = 0; part < Shape::kParts; ++part) {
        const RowScales scales(*this, part, weight_scales.of(part / Shape::kMSubTiles));
        float products[kSums];
        multiply(products, part);
        finish<0>(products);
        if (part == Shape::kParts - 1) {
          pipe_read_.next();
          release();
          is_full = hopper::is_over(ring_.full_barrier(pipe_read_.stage), pipe_read_.phase);
        }
        scales.add_up(products, sums_[part]);
      }
    }
  }

  // Adds up the products of one k-block while the next k-block is being multiplied.
  __device__ void run_overlapped(WeightScales& weight_scales, int k_blocks) {
    float even[kSums], odd[kSums];
    start(even);
    int k_block = 0;
    for (; k_block + 2 < k_blocks; k_block += 2) {
      start(odd);
      take<1>(even, weight_scales);
      start(even);
      take<1>(odd, weight_scales);
    }
    if (k_block + 1 < k_blocks) {
      start(odd);
      take<1>(even, weight_scales);
      take<0>(odd, weight_scales);
    } else {
      take<0>(even, weight_scales);
    }
  }

  // Starts the products of the next k-block.
  __device__ void start(float (&products)[kSums]) {
    hopper::wait(ring_.full_barrier(pipe_read_.stage), pipe_read_.phase);
    multiply(products, 0);
    pipe_read_.next();
  }

  // Adds up the products of a k-block, when at most kOpen later ones are still running.
  template <int kOpen>
  __device__ void take(float (&products)[kSums], WeightScales& weight_scales) {
    weight_scales.next();
    const RowScales scales(*this, 0, weight_scales.of(0));
    finish<kOpen>(products);
    release();
    scales.add_up(products, sums_[0]);
  }

  // The scales of a thread's two rows of a part, in the k-block that is released next.
  struct RowScales {
    float upper, lower;

    __device__ RowScales(const TileProduct& product, int part, float weight_scale) {
      const uint32_t scales = product.ring_.scale(product.pipe_release_.stage) +
                              (product.own_row_ + part % Shape::kMSubTiles * 64) * 4;
      upper = hopper::load_shared(scales) * weight_scale;
      lower = hopper::load_shared(scales + 8 * 4) * weight_scale;
    }
    __device__ void add_up(const float (&products)[kSums], float (&sums)[kSums]) const {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        sums[i] = fmaf(products[i], i % 4 < 2 ? upper : lower, sums[i]);
      }
    }
  };

  __device__ void multiply(float (&products)[kSums], int part) {
    constexpr uint64_t kMSubTileStep = 64 * kChannels / hopper::kMatrixUnit;
    constexpr uint64_t kNSubTileStep = Shape::kSubTileOutputs * kChannels / hopper::kMatrixUnit;
    const uint64_t stage = pipe_read_.stage * uint64_t{Shape::kStageBytes / hopper::kMatrixUnit};
    hopper::multiply_k_block(products, rows_ + stage + part % Shape::kMSubTiles * kMSubTileStep,
                             weight_ + stage + part / Shape::kMSubTiles * kNSubTileStep);
  }

  // Until at most kOpen groups of later products are still running.
  template <int kOpen>
  __device__ void finish(float (&products)[kSums]) {
    hopper::wait_for_products<kOpen>();
    hopper::pin(products);
  }

  // Lets both blocks of the cluster copy there again.
  __device__ void release() {
    __syncwarp();
    if (lane_ < Shape::kCluster) {
      hopper::arrive_there(hopper::in_block(ring_.empty_barrier(pipe_release_.stage), lane_));
    }
    pipe_release_.next();
  }

  const TileRing<Shape>& ring_;
  const Fp8GemmArgs& args_;
  uint64_t rows_, weight_;  // of the first stage, as the instruction takes them
  int lane_, own_row_;
  RingPlace<Shape::kStages> pipe_read_, pipe_release_;  // k-blocks to multiply, to be released
  float sums_[Shape::kParts][kSums];
};

template <class Shape, Fp8Form form>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    tile_gemm(const __grid_constant__ TileMaps maps, const Fp8GemmArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  __shared__ uint64_t barriers[2 * Shape::kStages];
  const TileRing<Shape> ring(memory, barriers);
  const int rank = hopper::cluster_rank();
  if (threadIdx.x == 0) ring.init_barriers();
  hopper::meet_cluster();
  wait_for_previous();
  let_next_start();
  const int k_blocks = static_cast<int>(args.columns / kChannels);
  const int step = static_cast<int>(gridDim.x) / Shape::kCluster;
  int number = static_cast<int>(blockIdx.x) / Shape::kCluster;
  TileSchedule<Shape, form> schedule(args, rank);
  GemmTile tile;
  if (threadIdx.x < hopper::kWarpgroup) {
    hopper::give_registers<Shape::kFewRegisters>();
    if (threadIdx.x == 0) {
      TileLoader<Shape> loader(ring, maps, rank);
      for (; schedule.find(number, tile); number += step) {
        if (tile.group >= 0) loader.run(tile, k_blocks);
      }
    }
    __syncwarp();
  } else {
    hopper::take_registers<Shape::kManyRegisters>();
    TileProduct<Shape> product(ring, args);
    for (; schedule.find(number, tile); number += step) {
      if (tile.group < 0) continue;
      product.run(tile, k_blocks);
      product.store(tile);
    }
  }
  // What the other block copies here and releases here has to find this block.
  hopper::meet_cluster();
#endif
}

}  // namespace rtp_llm::cuda

// SPDX-License-Identifier: Apache-2.0
// FP8 GEMMs of few rows ("tokens") as streams of the weight, which is the tall operand of the
// matrix instruction (swap-AB). Only for sm_90a.
//
// One warp brings k-blocks of 128 channels through a deep ring in shared memory: rows of the
// weight, the tokens and their scales. Warpgroups multiply 64 rows of the weight each; after every
// k-block the sums are scaled and added in float32 (the promotion of DeepGEMM,
// https://github.com/deepseek-ai/DeepGEMM).
#pragma once

#include "rtp_llm/kernels/common/fp8/fp8_gemm.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_ring.h"

namespace rtp_llm::cuda {

// Bytes of the tokens' scales in a stage.
template <int tokens>
constexpr int kScaleRow = tokens * 4 < 128 ? 128 : tokens * 4;

// J tokens and R rows of the weight in a tile, S k-blocks under way, W sub-tiles of 64 rows for a
// warpgroup.
template <int J, int R, int S, int W = 1>
struct StreamShape {
  static constexpr int kMSubTiles = W;
  static constexpr int kTokens = J;
  static constexpr int kRows = R;
  static constexpr int kStages = S;
  static constexpr int kConsumers = R / (64 * W) * hopper::kWarpgroup;
  // So many sums that warpgroups which multiply take registers of the one that copies.
  static constexpr bool kHeavy = J > 64;
  static constexpr int kFewRegisters = kConsumers > 256 ? 32 : 40;
  static constexpr int kManyRegisters = kConsumers > 256 ? 160 : 232;
  static constexpr int kThreads = kConsumers + (kHeavy ? hopper::kWarpgroup : kGroup);
  static constexpr int kWeightBytes = R * kChannels;
  static constexpr int kTokenBytes = J * kChannels;
  static constexpr int kScaleBytes = kScaleRow<J>;
  static constexpr int kTransactionBytes = kWeightBytes + kTokenBytes + J * 4;
  static constexpr int kStageBytes = kWeightBytes + kTokenBytes;
  static constexpr int kPitch = R + 4;  // of sums in shared memory, for its banks
  static constexpr int kBytes = 1024 + S * (kStageBytes + kScaleBytes);
  static_assert(J * kPitch * 4 <= S * kStageBytes, "sums take the place of the ring");
};

template <class Shape>
struct StreamRing : Fp8Ring<Shape> {
  using Fp8Ring<Shape>::Fp8Ring;

  __device__ uint32_t weight(int stage) const { return this->k_block(stage); }
  __device__ uint32_t tokens(int stage) const { return weight(stage) + Shape::kWeightBytes; }
  __device__ void init_barriers() const { this->init_barriers_for(Shape::kConsumers / kGroup); }
};

struct StreamMaps {
  CUtensorMap weight;  // [G, N, K]: boxes of rows x 128
  CUtensorMap tokens;  // [G, M, K]: boxes of tokens x 128
  CUtensorMap scales;  // [G, K / 128, scale rows]: boxes of 1 x tokens
};

// What a block multiplies at a time.
struct StreamTile : KBlockRange {
  int group, row;         // of the weight, and its first row
  int plane, token, end;  // of q, its first token, and the end of the tokens that count
  bool once;              // no other tile multiplies these rows of the weight
};

// The one thread that copies.
template <class Shape>
class StreamLoader {
 public:
  __device__ StreamLoader(const StreamRing<Shape>& ring, const StreamMaps& maps)
      : ring_(ring), maps_(maps) {}

  // The weight of the first k-blocks of a kernel; what else belongs to them follows in run(). The
  // weight was written long ago: this needs no kernel in front to have ended.
  __device__ void start(const StreamTile& tile) {
    for (; early_ < tile.k_blocks() && early_ < Shape::kStages; ++early_) {
      hopper::arrive_and_expect(ring_.full_barrier(early_), Shape::kTransactionBytes);
      load_weight(tile, tile.k_block(early_), early_);
    }
  }
  __device__ void run(const StreamTile& tile) {
    for (int number = 0; number < tile.k_blocks(); ++number, place_.next()) {
      const int stage = place_.stage, k_block = tile.k_block(number);
      if (early_ > 0) {
        --early_;
      } else {
        hopper::wait(ring_.empty_barrier(stage), place_.phase ^ 1);
        hopper::arrive_and_expect(ring_.full_barrier(stage), Shape::kTransactionBytes);
        load_weight(tile, k_block, stage);
      }
      hopper::tma_load(ring_.tokens(stage), &maps_.tokens, ring_.full_barrier(stage),
                       k_block * kChannels, tile.token, tile.plane, hopper::kStay);
      hopper::tma_load(ring_.scale(stage), &maps_.scales, ring_.full_barrier(stage), tile.token,
                       k_block, tile.plane, hopper::kStay);
    }
  }

 private:
  __device__ void load_weight(const StreamTile& tile, int k_block, int stage) {
    hopper::tma_load(ring_.weight(stage), &maps_.weight, ring_.full_barrier(stage),
                     k_block * kChannels, tile.row, tile.group,
                     tile.once ? hopper::kLeaveFirst : hopper::kNoHint);
  }

  const StreamRing<Shape>& ring_;
  const StreamMaps& maps_;
  RingPlace<Shape::kStages> place_;
  int early_ = 0;  // stages whose weight is under way
};

// A warpgroup: 64 rows of the weight. A thread holds rows lane / 4 and the one 8 below of its
// warp's 16, and tokens 8 j + 2 (lane % 4) and the next.
template <class Shape>
class StreamProduct {
 public:
  static constexpr int kSums = Shape::kTokens / 2;

  __device__ StreamProduct(const StreamRing<Shape>& ring, const Fp8GemmArgs& args)
      : ring_(ring), args_(args) {
    warpgroup_ = thread_index() / hopper::kWarpgroup;
    lane_ = thread_index() % kGroup;
    rows_ = hopper::matrix(ring.weight(0) + warpgroup_ * kOwnRows * kChannels, 16);
    tokens_ = hopper::matrix(ring.tokens(0), 16);
  }

  __device__ void run(const StreamTile& tile) {
#pragma unroll
    for (int sub_tile = 0; sub_tile < Shape::kMSubTiles; ++sub_tile) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums_[sub_tile][i] = 0;
    }
    const int k_blocks = static_cast<int>(args_.columns / kChannels);
    const int tiles = static_cast<int>((args_.outputs + kChannels - 1) / kChannels);
    const int scale_row = min((tile.row + warpgroup_ * kOwnRows) / kChannels, tiles - 1);
    const float* const scales =
        args_.weight_scales + (static_cast<int64_t>(tile.group) * tiles + scale_row) * k_blocks;
    float next = scale_of(scales, tile, 0), now = 0;
    for (int number = 0; number < tile.k_blocks(); ++number) {
      if (number % kGroup == 0) {
        now = next;
        next = scale_of(scales, tile, number + kGroup);
      }
      step(__shfl_sync(~0U, now, number % kGroup));
    }
  }

  // The sums to [token][row of the tile].
  __device__ void store(float* to) const {
    const int row = warpgroup_ * kOwnRows + own_row();
#pragma unroll
    for (int sub_tile = 0; sub_tile < Shape::kMSubTiles; ++sub_tile) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        to[token(i) * Shape::kPitch + row + sub_tile * 64 + i % 4 / 2 * 8] = sums_[sub_tile][i];
      }
    }
  }
  __device__ float sum(int sub_tile, int i) const { return sums_[sub_tile][i]; }
  // A sum's token, and its row within 64, which is 8 more for the upper half of each four.
  __device__ int token(int i) const { return i / 4 * 8 + lane_ % 4 * 2 + i % 2; }
  __device__ int own_row() const {
    return thread_index() % hopper::kWarpgroup / kGroup * 16 + lane_ / 4;
  }

 private:
  static constexpr int kOwnRows = 64 * Shape::kMSubTiles;

  __device__ float scale_of(const float* scales, const StreamTile& tile, int number) const {
    return number + lane_ < tile.k_blocks() ? __ldg(scales + tile.k_block(number + lane_)) : 0.0F;
  }

  // Waits for the products; then the stage may be overwritten, if `empty_barrier` is the one that
  // says so.
  __device__ void promote(float (&products)[kSums], float (&sums)[kSums], const float* scales,
                          float weight_scale, uint32_t empty_barrier) const {
    float2 factors[kSums / 4];
    if (!Shape::kHeavy) load_factors(scales, factors);
    hopper::wait_for_products<0>();
    hopper::pin(products);
    if (!Shape::kHeavy) release(empty_barrier);
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      const float2 factor =
          Shape::kHeavy ? *reinterpret_cast<const float2*>(scales + j * 8) : factors[j];
      const float even = factor.x * weight_scale, odd = factor.y * weight_scale;
#pragma unroll
      for (int i = 4 * j; i < 4 * j + 4; ++i) {
        sums[i] = fmaf(products[i], i % 2 == 0 ? even : odd, sums[i]);
      }
    }
    if (Shape::kHeavy) release(empty_barrier);
  }
  __device__ static void load_factors(const float* scales, float2 (&factors)[kSums / 4]) {
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      factors[j] = *reinterpret_cast<const float2*>(scales + j * 8);
    }
  }
  __device__ void release(uint32_t empty_barrier) const {
    if (empty_barrier == 0) return;
    __syncwarp();
    if (lane_ == 0) hopper::arrive(empty_barrier);
  }

  __device__ void step(float weight_scale) {
    constexpr uint64_t kMSubTileStep = 64 * kChannels / hopper::kMatrixUnit;
    const int stage = place_.stage;
    const uint64_t rows = rows_ + stage * (Shape::kStageBytes / hopper::kMatrixUnit);
    const uint64_t tokens = tokens_ + stage * (Shape::kStageBytes / hopper::kMatrixUnit);
    hopper::wait(ring_.full_barrier(stage), place_.phase);
    const float* const scales = ring_.scale_values(stage) + lane_ % 4 * 2;
#pragma unroll
    for (int sub_tile = 0; sub_tile < Shape::kMSubTiles; ++sub_tile) {
      float products[kSums];
      hopper::multiply_k_block(products, rows + sub_tile * kMSubTileStep, tokens);
      constexpr int kLast = Shape::kMSubTiles - 1;
      promote(products, sums_[sub_tile], scales, weight_scale,
              sub_tile == kLast ? ring_.empty_barrier(stage) : 0);
    }
    place_.next();
  }

  const StreamRing<Shape>& ring_;
  const Fp8GemmArgs& args_;
  RingPlace<Shape::kStages> place_;
  uint64_t rows_, tokens_;  // of the first stage, as the instruction takes them
  int warpgroup_, lane_;
  float sums_[Shape::kMSubTiles][kSums];
};

__device__ inline uint32_t bfloat16_pair(float low, float high) {
  return hopper::pair(low, high, BFloat16{});
}

// -- one tile for each cluster, whose blocks share its channels -----------------------------------

// Adds up what the blocks of the cluster have in shared memory at `sums`, and stores a share.
template <class Shape>
__device__ inline void finish_split(const Fp8GemmArgs& args, const StreamTile& tile, uint32_t sums,
                                    int rank, int split) {
  constexpr int kQuads = Shape::kRows / 4;
  for (int unit = rank * Shape::kConsumers + thread_index(); unit < Shape::kTokens * kQuads;
       unit += split * Shape::kConsumers) {
    const int token = unit / kQuads, row = unit % kQuads * 4;
    if (tile.token + token >= args.rows || tile.row + row >= args.outputs) continue;
    const uint32_t place = sums + (token * Shape::kPitch + row) * 4;
    const float4 total = sum_of_blocks(place, split);
    auto* const out = static_cast<uint16_t*>(args.out) + (tile.token + token) * args.outputs;
    *reinterpret_cast<uint2*>(out + tile.row + row) = {bfloat16_pair(total.x, total.y),
                                                       bfloat16_pair(total.z, total.w)};
  }
}

// What this block multiplies.
template <class Shape>
__device__ inline StreamTile split_tile(const Fp8GemmArgs& args, int rank, int split) {
  const int number = static_cast<int>(blockIdx.x) / split;
  const int k_blocks = static_cast<int>(args.columns / kChannels);
  StreamTile tile = {};
  tile.row = number * Shape::kRows;
  tile.token = static_cast<int>(blockIdx.y) * Shape::kTokens;
  tile.first = k_blocks * rank / split;
  tile.last = k_blocks * (rank + 1) / split;
  tile.set_rotation(number);
  tile.once = gridDim.y == 1;
  return tile;
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    fp8_stream_linear(const __grid_constant__ StreamMaps maps, const Fp8GemmArgs args,
                      const int split) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  __shared__ uint64_t barriers[2 * Shape::kStages];
  const StreamRing<Shape> ring(memory, barriers);
  const int rank = static_cast<int>(blockIdx.x) % split;
  const StreamTile tile = split_tile<Shape>(args, rank, split);
  if (thread_index() == Shape::kConsumers) ring.init_barriers();
  __syncthreads();
  let_next_start();
  if (thread_index() >= Shape::kConsumers) {
    if (Shape::kHeavy) hopper::give_registers<Shape::kFewRegisters>();
    if (thread_index() == Shape::kConsumers) {
      StreamLoader<Shape> loader(ring, maps);
      loader.start(tile);
      wait_for_previous();
      loader.run(tile);
    }
    return;
  }
  if (Shape::kHeavy) hopper::take_registers<Shape::kManyRegisters>();
  StreamProduct<Shape> product(ring, args);
  product.run(tile);
  wait_for_previous();
  hopper::sync(1, Shape::kConsumers);
  product.store(reinterpret_cast<float*>(ring.memory));
  if (split > 1) {
    hopper::sync_cluster();
  } else {
    hopper::sync(1, Shape::kConsumers);
  }
  finish_split<Shape>(args, tile, ring.stages, rank, split);
  if (split > 1) hopper::meet_cluster();  // the others have read what is here
#endif
}

}  // namespace rtp_llm::cuda

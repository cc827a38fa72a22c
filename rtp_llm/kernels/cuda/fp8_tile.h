// FP8 GEMMs of many rows: tiles of 128 or 256 rows of q by 32 to 128 of the weight. Only for
// sm_90a.
//
// Clusters of two blocks work on neighbouring tiles of the weight; each brings half of the rows of
// q for both. A block's loader warp keeps a ring of boxes of 128 channels full, across tiles; two
// warpgroups multiply half of the rows each, 64 at a time, and scale and add up after every box.
#pragma once

#include "rtp_llm/kernels/arguments/fp8_gemm.h"
#include "rtp_llm/kernels/cuda/fp8_groups.h"
#include "rtp_llm/kernels/cuda/fp8_ring.h"

namespace rtp_llm::cuda {

// W times 64 rows of q for each of two warpgroups, S boxes under way, N rows of the weight.
template <int W, int S, int N = 128>
struct TileShape {
  static constexpr int kWarpgroups = 2;
  // Of a thread that copies and of one that multiplies: as many as equal ones have together.
  static constexpr int kFewRegisters = 40;
  static constexpr int kManyRegisters = 232;
  static constexpr int kWaves = W;
  static constexpr int kStages = S;
  static constexpr int kRows = kWarpgroups * W * 64;
  static constexpr int kOutputs = N;
  static constexpr int kCluster = 2;
  static constexpr int kThreads = (kWarpgroups + 1) * hopper::kWarpgroup;
  static constexpr int kRowBytes = kRows * kChannels;
  static constexpr int kWeightBytes = kOutputs * kChannels;
  static constexpr int kScaleBytes = kRows * 4;
  static constexpr int kStageBytes = kRowBytes + kWeightBytes;
  static constexpr int kBoxBytes = kStageBytes + kScaleBytes;
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

  __device__ uint32_t rows(int stage) const { return this->box(stage); }
  __device__ uint32_t weight(int stage) const { return rows(stage) + Shape::kRowBytes; }
  // Of both blocks of the cluster: a copy goes to both.
  __device__ void init_barriers() const {
    this->init_barriers_for(Shape::kCluster * Shape::kWarpgroups * hopper::kWarpgroup / kGroup);
  }
};

struct GemmTile {
  int group;          // of the weight; -1: nothing to do
  int rows_group;     // of q
  int row, last_row;  // of q: the tile's first, and the one behind the group's last
  int output;         // of this block
};

// The tiles of clusters, in an order that keeps what is near together in the L2 cache: eight tiles
// of rows for every pair of tiles of the weight.
template <class Shape, Fp8Form form>
class TileSchedule {
 public:
  // By every thread of the block.
  __device__ TileSchedule(const Fp8GemmArgs& args, int rank) : args_(args), rank_(rank) {
    pairs_ = static_cast<int>((args.outputs + 2 * Shape::kOutputs - 1) / (2 * Shape::kOutputs));
    if constexpr (kGrouped) {
      __shared__ int ends[kMostGroups];
      tiles_.template init<Shape::kRows, Shape::kThreads>(args, pairs_, ends);
    }
  }

  // The tile of that number; false behind the last one. Numbers only grow.
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

// The one thread that copies.
template <class Shape>
class TileLoader {
 public:
  __device__ TileLoader(const TileRing<Shape>& ring, const TileMaps& maps, int rank)
      : ring_(ring), maps_(maps), rank_(rank) {}

  __device__ void run(const GemmTile& tile, int boxes) {
    constexpr int kHalf = Shape::kRows / 2;
    constexpr uint16_t kBoth = 3;
    for (int box = 0; box < boxes; ++box) {
      const int stage = place_.stage;
      const uint32_t came = ring_.came(stage);
      hopper::wait(ring_.read(stage), place_.turn ^ 1);
      hopper::arrive_and_expect(came, Shape::kBoxBytes);
      hopper::copy_box_to(kBoth, ring_.rows(stage) + rank_ * kHalf * kChannels, &maps_.rows, came,
                          box * kChannels, tile.row + rank_ * kHalf, tile.rows_group,
                          hopper::kNoHint);
      hopper::copy_box(ring_.weight(stage), &maps_.weight, came, box * kChannels, tile.output,
                       tile.group, hopper::kNoHint);
      hopper::copy_box(ring_.scale(stage), &maps_.scales, came, tile.row, box, tile.rows_group,
                       hopper::kNoHint);
      place_.next();
    }
  }

 private:
  const TileRing<Shape>& ring_;
  const TileMaps& maps_;
  int rank_;
  RingPlace<Shape::kStages> place_;
};

// A warpgroup: 64 kWaves rows of q. A thread holds of each 64 the row lane / 4 of its warp's 16 and
// the one 8 below, and outputs 8 j + 2 (lane % 4) and the next.
template <class Shape>
class TileProduct {
 public:
  static constexpr int kSums = Shape::kOutputs / 2;

  __device__ TileProduct(const TileRing<Shape>& ring, const Fp8GemmArgs& args)
      : ring_(ring), args_(args) {
    const int thread = thread_index() - hopper::kWarpgroup;
    lane_ = thread % kGroup;
    first_row_ = thread / hopper::kWarpgroup * 64 * Shape::kWaves;
    rows_ = hopper::matrix(ring.rows(0) + first_row_ * kChannels, 16);
    weight_ = hopper::matrix(ring.weight(0), 16);
    own_row_ = first_row_ + thread % hopper::kWarpgroup / kGroup * 16 + lane_ / 4;
  }

  __device__ void run(const GemmTile& tile, int boxes) {
#pragma unroll
    for (int wave = 0; wave < Shape::kWaves; ++wave) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums_[wave][i] = 0;
    }
    const int tiles = static_cast<int>((args_.outputs + kChannels - 1) / kChannels);
    const int scale_row = min(tile.output / kChannels, tiles - 1);
    const float* const scales =
        args_.weight_scales + (static_cast<int64_t>(tile.group) * tiles + scale_row) * boxes;
    BoxScales weight_scales(scales, boxes, lane_);
    if constexpr (Shape::kWaves == 1) {
      run_overlapped(weight_scales, boxes);
    } else {
      // For products of two boxes there are no registers: the other warpgroup multiplies meanwhile.
      for (int box = 0; box < boxes; ++box) {
        const float weight_scale = weight_scales.at(box);
#pragma unroll
        for (int wave = 0; wave < Shape::kWaves; ++wave) {
          float products[kSums];
          multiply(products, wave);
          take<0>(products, wave, weight_scale);
        }
      }
    }
  }

  // Each four lanes of a row exchange their pairs, so that each has eight neighbouring outputs.
  __device__ void store(const GemmTile& tile) const {
    if (tile.output >= args_.outputs) return;
    const int64_t first = tile.rows_group * args_.rows;
    auto* const out = static_cast<uint16_t*>(args_.out) + tile.output;
#pragma unroll
    for (int wave = 0; wave < Shape::kWaves; ++wave) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile.row + own_row_ + wave * 64 + half * 8;
#pragma unroll
        for (int j = 0; j < kSums / 4; j += 4) {
          uint32_t pairs[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float* const sums = sums_[wave] + (j + i) * 4 + half * 2;
            pairs[i] = hopper::pair(sums[0], sums[1], BFloat16{});
          }
          transpose(pairs);
          const int output = (j + lane_ % 4) * 8;
          if (row < tile.last_row && tile.output + output < args_.outputs) {
            *reinterpret_cast<uint4*>(out + (first + row) * args_.outputs + output) = {
                pairs[0], pairs[1], pairs[2], pairs[3]};
          }
        }
      }
    }
  }

 private:
  // The scales of the weight by box, as many at a time as a warp has lanes; asked for in order.
  class BoxScales {
   public:
    __device__ BoxScales(const float* scales, int boxes, int lane)
        : scales_(scales), boxes_(boxes), lane_(lane), next_(load(0)) {}
    __device__ float at(int box) {
      if (box % kGroup == 0) {
        now_ = next_;
        next_ = load(box + kGroup);
      }
      return __shfl_sync(~0U, now_, box % kGroup);
    }

   private:
    __device__ float load(int box) const {
      return box + lane_ < boxes_ ? __ldg(scales_ + box + lane_) : 0.0F;
    }

    const float* scales_;
    int boxes_, lane_;
    float next_, now_ = 0;
  };

  // Of four lanes: pairs[i] of lane q becomes pairs[q] of lane i.
  __device__ void transpose(uint32_t (&pairs)[4]) const {
    const bool odd = lane_ % 2 != 0, high = lane_ % 4 >= 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) swap(pairs[i], pairs[i + 1], odd, 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) swap(pairs[i], pairs[i + 2], high, 2);
  }

  // The first of the upper lanes against the second of the lower ones.
  __device__ static void swap(uint32_t& first, uint32_t& second, bool upper, int mask) {
    const uint32_t other = exchange(upper ? first : second, mask);
    first = upper ? other : first;
    second = upper ? second : other;
  }

  // The products of a box are added up while those of the next are made.
  __device__ void run_overlapped(BoxScales& weight_scales, int boxes) {
    float even[kSums], odd[kSums];
    multiply(even, 0);
    int box = 0;
    for (; box + 2 < boxes; box += 2) {
      multiply(odd, 0);
      take<1>(even, 0, weight_scales.at(box));
      multiply(even, 0);
      take<1>(odd, 0, weight_scales.at(box + 1));
    }
    if (box + 1 < boxes) {
      multiply(odd, 0);
      take<1>(even, 0, weight_scales.at(box));
      take<0>(odd, 0, weight_scales.at(box + 1));
    } else {
      take<0>(even, 0, weight_scales.at(box));
    }
  }

  // Starts the products of 64 rows in the next box.
  __device__ void multiply(float (&products)[kSums], int wave) {
    constexpr uint64_t kWaveStep = 64 * kChannels / hopper::kMatrixUnit;
    const uint64_t stage = coming_.stage * uint64_t{Shape::kStageBytes / hopper::kMatrixUnit};
    if (wave == 0) hopper::wait(ring_.came(coming_.stage), coming_.turn);
    hopper::multiply_boxes(products, rows_ + stage + wave * kWaveStep, weight_ + stage);
    if (wave == Shape::kWaves - 1) coming_.next();
  }

  // Adds up the products, when at most kOpen groups of later ones are still running.
  template <int kOpen>
  __device__ void take(float (&products)[kSums], int wave, float weight_scale) {
    const float* const scales = ring_.scale_values(read_.stage) + own_row_ + wave * 64;
    const float upper = scales[0] * weight_scale, lower = scales[8] * weight_scale;
    hopper::wait_for_products<kOpen>();
    hopper::pin(products);
    if (wave == Shape::kWaves - 1) release();
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      sums_[wave][i] = fmaf(products[i], i % 4 < 2 ? upper : lower, sums_[wave][i]);
    }
  }

  // Lets both blocks of the cluster copy there again.
  __device__ void release() {
    __syncwarp();
    if (lane_ < Shape::kCluster) {
      hopper::arrive_there(hopper::in_block(ring_.read(read_.stage), lane_));
    }
    read_.next();
  }

  const TileRing<Shape>& ring_;
  const Fp8GemmArgs& args_;
  uint64_t rows_, weight_;  // of the first stage, as the instruction takes them
  int lane_, first_row_, own_row_;
  RingPlace<Shape::kStages> coming_, read_;  // boxes to multiply, and to be released
  float sums_[Shape::kWaves][kSums];
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
  const int boxes = static_cast<int>(args.columns / kChannels);
  const int step = static_cast<int>(gridDim.x) / Shape::kCluster;
  int number = static_cast<int>(blockIdx.x) / Shape::kCluster;
  TileSchedule<Shape, form> schedule(args, rank);
  GemmTile tile;
  if (threadIdx.x < hopper::kWarpgroup) {
    hopper::give_registers<Shape::kFewRegisters>();
    if (threadIdx.x == 0) {
      TileLoader<Shape> loader(ring, maps, rank);
      for (; schedule.find(number, tile); number += step) {
        if (tile.group >= 0) loader.run(tile, boxes);
      }
    }
    __syncwarp();
  } else {
    hopper::take_registers<Shape::kManyRegisters>();
    TileProduct<Shape> product(ring, args);
    for (; schedule.find(number, tile); number += step) {
      if (tile.group < 0) continue;
      product.run(tile, boxes);
      product.store(tile);
    }
  }
  // What the other block copies here and releases here has to find this block.
  hopper::meet_cluster();
#endif
}

}  // namespace rtp_llm::cuda

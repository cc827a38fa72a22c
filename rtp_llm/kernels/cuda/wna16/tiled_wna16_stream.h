// SPDX-License-Identifier: Apache-2.0
// Products with a weight in groups as streams of the weight, which is the tall operand of the
// matrix instruction (swap-AB) and becomes 16-bit floats in registers. Only for sm_90a.
//
// One thread brings k-blocks of 128 columns through a ring in shared memory: codes, scales and
// zero points of a tile's rows, and the tokens. Warpgroups multiply 64 rows of the weight each.
#pragma once

#include "rtp_llm/kernels/cuda/gemm/stream_linear_tile.h"
#include "rtp_llm/kernels/cuda/wna16/tiled_wna16_skinny.h"

namespace rtp_llm::cuda {

// J tokens and R rows of the weight in a tile, of which a warpgroup has 64 or, of the largest, 128.
template <int J, int R, class Format>
struct WnaStreamShape : Format {
  static constexpr int kTokens = J;
  static constexpr int kRows = R;
  static constexpr int kRowBlocks = J * R >= 128 * 256 && R == 256 ? 2 : 1;  // of 64 rows
  static constexpr int kConsumers = R / (64 * kRowBlocks) * hopper::kWarpgroup;
  // Large tiles need more registers than threads get evenly: those of a warpgroup that copies.
  static constexpr int kRegisters = J * R < 128 * 256 ? 0 : 240;
  static constexpr int kThreads = kConsumers + (kRegisters > 0 ? hopper::kWarpgroup : kGroup);
  // Where the parts of a stage begin: tokens twice with 64 columns, then the weight's.
  static constexpr int kHalf = J * kRowBytes;
  static constexpr int kCodesAt = 2 * kHalf;
  static constexpr int kScalesAt = kCodesAt + R / kWnaUnitRows * Format::kCodes;
  static constexpr int kZerosAt = kScalesAt + R * Format::kGroups * 2;
  static constexpr int kZeros = R * Format::kGroups * Format::kZeroBytes;
  static constexpr int kStageBytes = (kZerosAt + kZeros + 1023) / 1024 * 1024;
  static constexpr int kStages = kRingBytes / kStageBytes < 16 ? kRingBytes / kStageBytes : 16;
  static constexpr int kPitch = R + 4;  // of sums in shared memory, for its banks
  static constexpr int kBytes = 1024 + kStages * kStageBytes;
  static_assert(J * kPitch * 4 <= kStages * kStageBytes, "sums take the place of the ring");
};

template <class Shape>
struct WnaStreamTile : KBlockRange {
  int row;    // in each plane
  int token;  // the first one

  __device__ int tokens(const SkinnyLinearArgs& args) const {
    return min(Shape::kTokens, static_cast<int>(args.rows) - token);
  }
};

// Tiles of the same rows and different tokens follow each other, at most 16 of them.
template <class Shape>
__device__ inline WnaStreamTile<Shape> wna_tile(const TiledWna16Args& args, int rank, int split) {
  const int planes = planes_of(args.linear.end), plane_rows = Shape::kRows / planes;
  const int row_tiles =
      (static_cast<int>(args.linear.outputs) / planes + plane_rows - 1) / plane_rows;
  const int token_tiles =
      (static_cast<int>(args.linear.rows) + Shape::kTokens - 1) / Shape::kTokens;
  const int number = static_cast<int>(blockIdx.x) / split;
  constexpr int kTogether = 16;
  const int set = number / (kTogether * row_tiles), in_set = number % (kTogether * row_tiles);
  const int width = min(kTogether, token_tiles - set * kTogether);
  const int k_blocks = static_cast<int>(args.linear.columns / kWnaColumns);
  WnaStreamTile<Shape> tile = {};
  tile.row = in_set / width * plane_rows;
  tile.token = (set * kTogether + in_set % width) * Shape::kTokens;
  tile.first = k_blocks * rank / split;
  tile.last = k_blocks * (rank + 1) / split;
  tile.set_rotation(token_tiles > 1 ? 0 : number);
  return tile;
}

// Brings a plane's part of a tile's weight: `rows` rows from `row` on, at `in_tile` of the tile.
template <class Shape>
__device__ inline void load_rows(const TiledWna16Args& args, uint32_t stage, uint32_t barrier,
                                 int k_block, int row, int rows, int in_tile) {
  constexpr int kQ = Shape::kGroups;
  const int64_t outputs = args.linear.outputs;
  const int64_t place = k_block * outputs + row;
  const int64_t block = args.k_blocks_of_group == 1 ? k_block : k_block / args.k_blocks_of_group;
  const int64_t group = (block * outputs + row) * kQ;
  hopper::copy_in(stage + Shape::kCodesAt + in_tile / kWnaUnitRows * Shape::kCodes,
                  args.codes + place / kWnaUnitRows * Shape::kCodes,
                  rows / kWnaUnitRows * Shape::kCodes, barrier);
  hopper::copy_in(stage + Shape::kScalesAt + in_tile * kQ * 2,
                  static_cast<const uint8_t*>(args.scale) + group * 2, rows * kQ * 2, barrier);
  if (args.zero == nullptr) return;
  constexpr int kZeroBytes = Shape::kZeroBytes;
  hopper::copy_in(stage + Shape::kZerosAt + in_tile * kQ * kZeroBytes,
                  args.zero + group * kZeroBytes, rows * kQ * kZeroBytes, barrier);
}

// The one thread that copies. The weight was written long ago: its first k-blocks need no kernel in
// front to have ended.
template <class Shape>
__device__ inline void load_wna_tile(const KBlockRing<Shape>& ring, const CUtensorMap& tokens,
                                     const TiledWna16Args& args, const WnaStreamTile<Shape>& tile) {
  const int planes = planes_of(args.linear.end), plane_rows = Shape::kRows / planes;
  const int outputs = static_cast<int>(args.linear.outputs) / planes;
  const int rows = min(plane_rows, outputs - tile.row);
  const int of_group = 2 + (args.zero == nullptr ? 0 : Shape::kZeroBytes);
  const int per_row = Shape::kCodes / kWnaUnitRows + Shape::kGroups * of_group;
  const int bytes = planes * rows * per_row + 2 * Shape::kHalf;
  const auto load_weight = [&](int number, int stage) {
    hopper::arrive_and_expect(ring.full_barrier(stage), bytes);
    for (int plane = 0; plane < planes; ++plane) {
      load_rows<Shape>(args, ring.k_block(stage), ring.full_barrier(stage), tile.k_block(number),
                       plane * outputs + tile.row, rows, plane * plane_rows);
    }
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
    for (int half = 0; half < 2; ++half) {
      hopper::tma_load(ring.k_block(stage) + half * Shape::kHalf, &tokens, ring.full_barrier(stage),
                       tile.k_block(number) * kWnaColumns + half * 64, tile.token, 0,
                       hopper::kStay);
    }
  }
}

template <class Pair>
__device__ inline uint32_t multiply_as(uint32_t a, uint32_t b) {
  const Pair result = __hmul2(reinterpret_cast<const Pair&>(a), reinterpret_cast<const Pair&>(b));
  return reinterpret_cast<const uint32_t&>(result);
}
template <class T>
__device__ inline uint32_t multiply_pair(uint32_t a, uint32_t b) {
  if constexpr (std::is_same_v<T, Float16>) return multiply_as<__half2>(a, b);
  return multiply_as<__nv_bfloat162>(a, b);
}

__device__ inline uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c, BFloat16 /*type*/) {
  using Pair = __nv_bfloat162;
  const Pair result = __hfma2(reinterpret_cast<const Pair&>(a), reinterpret_cast<const Pair&>(b),
                              reinterpret_cast<const Pair&>(c));
  return reinterpret_cast<const uint32_t&>(result);
}

// Numbers of a lane's two rows as the type that is multiplied, each twice in a register.
template <int groups>
using WnaPairs = uint32_t[2][groups];

// The operand of four matrix instructions: 64 columns of the warp's 16 rows, dequantised.
template <class T, class Shape>
__device__ inline void dequantize_half(const WnaBlock<T, Shape>& block, int half,
                                       const WnaPairs<Shape::kGroups>& scales,
                                       const WnaPairs<Shape::kGroups>& shifts,
                                       uint32_t (&operand)[4][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int chunk = 2 * half + i;
#pragma unroll
    for (int rows = 0; rows < 2; ++rows) {
      uint32_t pairs[4];
      const uint32_t zero = block.zeros[rows][group_of<Shape::kGroups>(chunk, 0)];
      dequantize<T, Shape::kBits>(block.codes[rows], block.high[rows], chunk, zero, pairs);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const int group = group_of<Shape::kGroups>(chunk, p);
        uint32_t& to = operand[2 * i + p / 2][p % 2 * 2 + rows];
        if constexpr (Shape::kFloatZeros) {
          to = multiply_add(pairs[p], scales[rows][group], shifts[rows][group], T{});
        } else {
          to = multiply_pair<T>(pairs[p], scales[rows][group]);
        }
      }
    }
  }
}

// The first row of the tile of which this thread has sums; the next ones are 8 and 64 below.
template <class Shape>
__device__ inline int first_row() {
  const int warpgroup = thread_index() / hopper::kWarpgroup;
  const int warp = thread_index() / kGroup % 4, lane = thread_index() % kGroup;
  return warpgroup * 64 * Shape::kRowBlocks + warp * 16 + lane / 4;
}

template <class T, int groups>
__device__ inline void pair_up(const float (&numbers)[2][groups], WnaPairs<groups>& pairs) {
#pragma unroll
  for (int i = 0; i < 2 * groups; ++i) {
    const float number = numbers[i / groups][i % groups];
    pairs[i / groups][i % groups] = hopper::pair(number, number, T{});
  }
}

// Waits for a warpgroup's sums and stores them at [token][row of the tile] in place of the ring.
template <class Shape, int rows, int count>
__device__ inline void keep_sums(uint8_t* memory, int row, float (&sums)[rows][count]) {
  hopper::wait_for_products<0>();
#pragma unroll
  for (int i = 0; i < rows; ++i) hopper::pin(sums[i]);
  hopper::sync(1, Shape::kConsumers);  // the ring is no longer read
  auto* const to = reinterpret_cast<float*>(memory);
  const int lane = thread_index() % kGroup;
#pragma unroll
  for (int i = 0; i < rows * count; ++i) {
    const int block = i / count, sum = i % count;
    const int token = sum / 4 * 8 + lane % 4 * 2 + sum % 2;
    to[token * Shape::kPitch + row + block * 64 + sum % 4 / 2 * 8] = sums[block][sum];
  }
}

// A warpgroup: the sums of its rows of the tile.
template <class T, class Shape>
__device__ inline void multiply_wna_rows(const KBlockRing<Shape>& ring, const TiledWna16Args& args,
                                         int k_blocks) {
  constexpr int kStep = 32 / hopper::kMatrixUnit, kHalf = Shape::kHalf / hopper::kMatrixUnit;
  const int lane = thread_index() % kGroup, row = first_row<Shape>();
  const uint64_t tokens = hopper::matrix(ring.k_block(0), 16);
  float sums[Shape::kRowBlocks][Shape::kTokens / 2];  // the first products set them
  uint32_t operand[2][4][4];
  RingPlace<Shape::kStages> place;
  int last = -1;
  for (int number = 0; number < k_blocks; ++number, place.next()) {
    const uint64_t offset = place.stage * (Shape::kStageBytes / hopper::kMatrixUnit);
    hopper::wait(ring.full_barrier(place.stage), place.phase);
    const uint8_t* const stage = ring.memory + place.stage * Shape::kStageBytes;
#pragma unroll
    for (int i = 0; i < Shape::kRowBlocks; ++i) {
      const WnaBlock<T, Shape> block(stage, args, row + i * 64, lane);
      WnaPairs<Shape::kGroups> scales, shifts;
      pair_up<T>(block.scales, scales);
      if constexpr (Shape::kFloatZeros) pair_up<T>(block.shifts, shifts);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        hopper::wait_for_products<1>();  // all but the last four
        if (i == 0 && half == 1 && last >= 0 && lane == 0) hopper::arrive(ring.empty_barrier(last));
        dequantize_half(block, half, scales, shifts, operand[half]);
        hopper::begin_products();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const uint64_t place_of_k = offset + half * kHalf + k * kStep;
          const bool add = number + half + k > 0;
          hopper::multiply_by_rows(sums[i], operand[half][k], tokens + place_of_k, add, T{});
        }
        hopper::end_products();
      }
    }
    last = place.stage;
  }
  keep_sums<Shape>(ring.memory, row, sums);
}

template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    tiled_wna16_stream_kernel(const __grid_constant__ CUtensorMap tokens, const TiledWna16Args args,
                              const int split) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  __shared__ uint64_t barriers[2 * Shape::kStages];
  const KBlockRing<Shape> ring(memory, barriers);
  const int rank = static_cast<int>(blockIdx.x) % split;
  const auto tile = wna_tile<Shape>(args, rank, split);
  if (thread_index() == Shape::kConsumers) ring.init_barriers_for(Shape::kConsumers / kGroup);
  __syncthreads();
  let_next_start();
  if (thread_index() >= Shape::kConsumers) {
    if constexpr (Shape::kRegisters > 0) hopper::give_registers<24>();
    if (thread_index() == Shape::kConsumers) load_wna_tile<Shape>(ring, tokens, args, tile);
    return;
  }
  if constexpr (Shape::kRegisters > 0) hopper::take_registers<Shape::kRegisters>();
  multiply_wna_rows<T, Shape>(ring, args, tile.k_blocks());
  wait_for_previous();
  store_shares<T, Shape, true>(args.linear, tile, ring.stages, rank, split);
#else
  __trap();
#endif
}

}  // namespace rtp_llm::cuda

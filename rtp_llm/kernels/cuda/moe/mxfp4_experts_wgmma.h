// SPDX-License-Identifier: Apache-2.0
// Experts of many rows in MXFP4: tiles of weight rows by tokens at the rate of Hopper's tensor
// cores. Only for sm_90a.
//
// The weight is the tall operand of the matrix instruction (swap-AB), decoded in registers from
// codes that the copy engine brings; the tokens, in the order of columns that the codes have, are
// the other one, in shared memory. Blocks stay, and take one tile after another: the next tile's
// operands come while the last one's results are stored.
#pragma once

#include "rtp_llm/kernels/cuda/moe/mxfp4_experts_feed.h"

namespace rtp_llm::cuda {

// A warpgroup that multiplies. Of a block of 64 weight rows a thread has rows lane / 4 and
// lane / 4 + 8 of its warp's 16, and tokens 8 j + 2 (lane % 4) and the next.
template <class Shape, bool kGated>
class ManyRowsProduct {
 public:
  __device__ ManyRowsProduct(const KBlockRing<Shape>& ring, const Mxfp4ExpertsArgs& args)
      : ring_(ring), args_(args) {
    const int thread = thread_index() - hopper::kWarpgroup;
    warpgroup_ = __shfl_sync(~0U, thread / hopper::kWarpgroup, 0);
    warp_ = __shfl_sync(~0U, thread % hopper::kWarpgroup / kGroup, 0);
    lane_ = thread % kGroup;
    out_ = ring.stages + Shape::kStages * Shape::kStageBytes + warpgroup_ * Shape::kOutBytes;
  }

  // The sums of a tile.
  __device__ void run() {
    constexpr int kStep = 32 / hopper::kMatrixUnit;
    const int steps = static_cast<int>(args_.k / kStepColumns);
    const uint64_t tokens = hopper::matrix(ring_.k_block(0), 16);
    uint32_t operand[2][2][4];
    int last = -1;
    for (int step = 0; step < steps; ++step, place_.next()) {
      const uint64_t stage = place_.stage * uint64_t{Shape::kStageBytes / hopper::kMatrixUnit};
      hopper::wait(ring_.full_barrier(place_.stage), place_.phase);
      const uint8_t* const memory = ring_.memory + place_.stage * Shape::kStageBytes;
#pragma unroll
      for (int i = 0; i < Shape::kRowBlocks; ++i) {
        const uint8_t* const codes = memory + Shape::kCodesAt + tile_of(i) * kGroup * 16;
        const uint8_t* const scales = memory + Shape::kScalesAt + tile_of(i) * 8 * 4;
        const uint4 words = *reinterpret_cast<const uint4*>(codes + lane_ * 16);
        const uint32_t exponents = *reinterpret_cast<const uint32_t*>(scales + lane_ / 4 * 4);
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          hopper::wait_for_products<1>();  // all but the last two
          if (i == 0 && block == 1 && last >= 0) release(last);
          decode(words, exponents, block, operand[block]);
          hopper::begin_products();
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            hopper::multiply_by_rows(sums_[i], operand[block][k],
                                     tokens + stage + (2 * block + k) * kStep, step + block + k > 0,
                                     BFloat16{});
          }
          hopper::end_products();
        }
      }
      last = place_.stage;
    }
    hopper::wait_for_products<0>();
#pragma unroll
    for (int i = 0; i < Shape::kRowBlocks; ++i) hopper::pin(sums_[i]);
    release(last);
  }

  // Through shared memory, so that neighbouring threads store neighbouring bytes.
  __device__ void store(const ManyRowsTile& tile) const {
    constexpr int kPlanes = kGated ? 2 : 1;
    constexpr int kUnits = Shape::kRowBlocks * 8 / kPlanes;  // of 16 bytes, of a token
    const int64_t width = args_.n / kPlanes;
    const int column =
        (tile.row + warpgroup_ * Shape::kRowBlocks * 64) / kPlanes;  // of the warpgroup
    const Biases biases(*this, tile);
    const int thread = thread_index() % hopper::kWarpgroup;
#pragma unroll
    for (int part = 0; part < Shape::kTokens / Shape::kOutTokens; ++part) {
      if (tile.first + part * Shape::kOutTokens >= tile.end) break;
#pragma unroll
      for (int i = 0; i < Shape::kRowBlocks; ++i) keep(part, i, biases);
      hopper::sync(1 + warpgroup_, hopper::kWarpgroup);
#pragma unroll
      for (int unit = thread; unit < Shape::kOutTokens * kUnits; unit += hopper::kWarpgroup) {
        const int token = unit / kUnits, at = unit % kUnits;
        const int64_t place = tile.first + part * Shape::kOutTokens + token;
        if (place < tile.end && column + at * 8 < width) {
          auto* const to = static_cast<BFloat16*>(args_.out) + place * width + column + at * 8;
          *reinterpret_cast<uint4*>(to) = load_vector(out_ + token * Shape::kPitch + at * 16);
        }
      }
      hopper::sync(1 + warpgroup_, hopper::kWarpgroup);
    }
  }

 private:
  // The operands of 32 columns, which have to be there before the products begin.
  __device__ static void decode(const uint4& words, uint32_t exponents, int block,
                                uint32_t (&operand)[2][4]) {
    decode_mxfp4(block == 0 ? words.x : words.z, exponents, block, operand[0]);
    decode_mxfp4(block == 0 ? words.y : words.w, exponents, block, operand[1]);
#pragma unroll
    for (int i = 0; i < 8; ++i) hopper::keep(operand[i / 4][i % 4]);
  }

  // The place of the warp's 16 rows in a tile.
  __device__ int tile_of(int i) const { return (warpgroup_ * Shape::kRowBlocks + i) * 4 + warp_; }

  struct Biases {
    float first[Shape::kRowBlocks], second[Shape::kRowBlocks];

    __device__ Biases(const ManyRowsProduct& product, const ManyRowsTile& tile) {
      const auto& args = product.args_;
      const auto* const bias = static_cast<const BFloat16*>(args.bias) + tile.expert * args.n;
      const int64_t apart = kGated ? args.n / 2 : 8;
#pragma unroll
      for (int i = 0; i < Shape::kRowBlocks; ++i) {
        const int from = tile.row + product.tile_of(i) * 16;
        const int64_t row = (kGated ? from / 2 : from) + product.lane_ / 4;
        const bool there = from < args.n;
        first[i] = there ? to_float(bias[row]) : 0.0f;
        second[i] = there ? to_float(bias[row + apart]) : 0.0f;
      }
    }
  };

  // Stores 32 tokens of block `i` in shared memory, transposed.
  __device__ void keep(int part, int i, const Biases& biases) const {
    constexpr int kColumns = kGated ? 8 : 16;  // of a warp
    constexpr int kPerStore = kGated ? 4 : 2;  // tiles of eight tokens
    const int matrix = lane_ / 8;
    const int column = i * 4 * kColumns + warp_ * kColumns + (kGated ? 0 : matrix % 2 * 8);
#pragma unroll
    for (int j = 0; j < Shape::kOutTokens / 8; j += kPerStore) {
      uint32_t pairs[4];
#pragma unroll
      for (int m = 0; m < kPerStore; ++m) {
        const float* const sums = sums_[i] + (part * (Shape::kOutTokens / 8) + j + m) * 4;
        const float a = sums[0] + biases.first[i], b = sums[1] + biases.first[i];
        const float c = sums[2] + biases.second[i], d = sums[3] + biases.second[i];
        if constexpr (kGated) {
          pairs[m] = hopper::pair(gated(args_, a, c), gated(args_, b, d), BFloat16{});
        } else {
          pairs[2 * m] = hopper::pair(a, b, BFloat16{});
          pairs[2 * m + 1] = hopper::pair(c, d, BFloat16{});
        }
      }
      const int token = (j + (kGated ? matrix : matrix / 2)) * 8 + lane_ % 8;
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                       out_ + token * Shape::kPitch + column * 2),
                   "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                   : "memory");
    }
  }

  __device__ static uint4 load_vector(uint32_t from) {
    uint4 vector;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(vector.x), "=r"(vector.y), "=r"(vector.z), "=r"(vector.w)
                 : "r"(from)
                 : "memory");
    return vector;
  }

  // This warp has read the stage. Its lanes are together since they waited for products; to bring
  // them together here would end what the compiler sees as one run of products.
  __device__ void release(int stage) const {
    if (lane_ == 0) hopper::arrive(ring_.empty_barrier(stage));
  }

  const KBlockRing<Shape>& ring_;
  const Mxfp4ExpertsArgs& args_;
  int warpgroup_, warp_, lane_;
  uint32_t out_;
  RingPlace<Shape::kStages> place_;
  float sums_[Shape::kRowBlocks][Shape::kTokens / 2];
};

template <class Shape, bool kGated>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    multiply_many_rows(const __grid_constant__ ManyRowsMaps maps, const Mxfp4ExpertsArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  __shared__ uint64_t barriers[2 * Shape::kStages];
  __shared__ int ends[kMaxGroups];
  const KBlockRing<Shape> ring(memory, barriers);
  if (threadIdx.x == 0) ring.init_barriers_for(Shape::kConsumers / kGroup);
  wait_for_previous();
  let_next_start();
  ManyRowsSchedule<Shape> schedule(args, ends);
  ManyRowsTile tile;
  int number = static_cast<int>(blockIdx.x);
  const int step = static_cast<int>(gridDim.x);
  if (threadIdx.x < hopper::kWarpgroup) {
    hopper::give_registers<Shape::kFewRegisters>();
    if (threadIdx.x > 0) return;
    ManyRowsLoader<Shape> loader(ring, maps, args);
    for (; schedule.find(number, tile); number += step) loader.run(tile);
  } else {
    hopper::take_registers<Shape::kManyRegisters>();
    ManyRowsProduct<Shape, kGated> product(ring, args);
    for (; schedule.find(number, tile); number += step) {
      product.run();
      product.store(tile);
    }
  }
#else
  __trap();
#endif
}

}  // namespace rtp_llm::cuda

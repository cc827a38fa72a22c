// SPDX-License-Identifier: Apache-2.0
// The kernel of skinny_linear.h and its launch. There is a file for the instantiations of each end,
// so that they compile in parallel.
#pragma once

#include "rtp_llm/kernels/cuda/gemm/gate_activation.h"
#include "rtp_llm/kernels/cuda/gemm/skinny_linear_launch.h"
#include "rtp_llm/kernels/cuda/launch.h"

namespace rtp_llm::cuda {

// One of a tile's results, which a thread finishes: a lane's sum `index` over all warps. A tile of
// gates has 8 rows of gates, and the rows of their factors 8 below.
template <LinearEnd end>
struct Result {
  static constexpr int kOfLane = end == LinearEnd::kGate ? 2 : 4;  // in a tile of tokens

  __device__ explicit Result(int number, int tile) : lane(number % kGroup) {
    const int sum = number / kGroup % kOfLane;
    const int tokens = number / (kGroup * kOfLane);
    index = tokens * 4 + sum;
    token = tokens * kTileTokens + lane % 4 * 2 + sum % 2;
    output = tile * kTileRows / 4 * kOfLane + lane / 4 + sum / 2 * (kTileRows / 2);
  }

  int lane;
  int index;
  int token;
  int output;
};

template <class T, class Shape, LinearEnd end, bool norm>
__device__ inline void finish(const SkinnyLinearArgs& args, const Result<end>& result,
                              const float* sums, const float* squares, float before) {
  float sum = 0.0f, factor = 0.0f, square = 0.0f;
#pragma unroll
  for (int warp = 0; warp < Shape::kWarps; ++warp) {
    const float* const of_warp = sums + warp * Shape::kSums * kGroup + result.lane;
    sum += of_warp[result.index * kGroup];
    if (end == LinearEnd::kGate) factor += of_warp[(result.index + 2) * kGroup];
    if (norm) square += squares[warp * Shape::kTokens + result.token];
  }
  if (norm) {
    const float inverse = 1.0f / sqrtf(square / static_cast<float>(args.columns) + args.eps);
    sum *= inverse;
    factor *= inverse;
  }
  const T* const bias = static_cast<const T*>(args.bias);
  if (bias != nullptr) {
    sum += to_float(bias[result.output]);
    if (end == LinearEnd::kGate) factor += to_float(bias[args.outputs / 2 + result.output]);
  }
  const int64_t at = result.token * args.out_stride + result.output;
  if (end == LinearEnd::kFloat) {
    static_cast<float*>(args.out)[at] = sum;
  } else {
    if (end == LinearEnd::kGate) sum = activated(sum, args.activation) * factor;
    static_cast<T*>(args.out)[at] = from_float<T>(before + sum);
  }
}

// What the results of a tile are added to, as long as there is such a tile.
template <class T, class Shape, LinearEnd end, int each>
__device__ inline void load_before(const SkinnyLinearArgs& args, const SkinnyLane& lane, int tile,
                                   float (&before)[each]) {
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const Result<end> result(lane.thread + i * Shape::kThreads, tile);
    if (result.token >= args.rows || result.output >= args.outputs) continue;
    const int64_t at = result.token * args.out_stride + result.output;
    before[i] = to_float(static_cast<const T*>(args.out)[at]);
  }
}

// The warp's share of a tile's sums, into result[(warp, sum, lane)].
template <class T, class Shape, LinearEnd end>
__device__ inline void multiply_tile(const SkinnyLinearArgs& args, const SkinnyLane& lane,
                                     const SkinnyMemory<T, Shape>& memory,
                                     const SkinnyTokens<Shape>& tokens,
                                     SkinnyWeights<T, Shape, end>& weights, float* result) {
  // Two of each: an instruction need not wait for the one before.
  float even[Shape::kTokenTiles][4] = {}, odd[Shape::kTokenTiles][4] = {};
  if (Shape::kKeeps) {
    multiply_kept(args, lane, tokens, weights, even, odd);
  } else {
    multiply_staged(args, lane, memory, weights, even, odd);
  }
#pragma unroll
  for (int i = 0; i < Shape::kSums; ++i) {
    const float sum = even[i / 4][i % 4] + odd[i / 4][i % 4];
    result[(lane.warp * Shape::kSums + i) * kGroup + lane.lane] = sum;
  }
}

template <bool norm, class T, class Shape>
__device__ inline void take_tokens(const SkinnyLinearArgs& args, const SkinnyLane& lane,
                                   const SkinnyMemory<T, Shape>& memory,
                                   SkinnyTokens<Shape>& tokens) {
  if (norm) {
    wait_for_groups<Shape::kSlots>();  // what request_norm asked for
    __syncwarp();
  }
  if (Shape::kKeeps) {
    keep_tokens<norm>(args, lane, memory, tokens);
  } else {
    stage_tokens<norm, T, Shape>(args, lane, memory);
  }
}

// The tiles of the block, for kernels of all kinds of weights: stage() brings the tokens once, and
// multiply(sums) puts the warps' shares of a tile where finish() expects them.
template <class T, class Shape, LinearEnd end, bool norm, class Memory, class Stage, class Multiply>
__device__ inline void multiply_tiles(const SkinnyLinearArgs& args, const SkinnyLane& lane,
                                      const Memory& memory, Stage&& stage, Multiply&& multiply) {
  constexpr int kResults = Shape::kTokenTiles * Result<end>::kOfLane * kGroup;
  constexpr int kEach = (kResults + Shape::kThreads - 1) / Shape::kThreads;  // of a thread
  int tile = static_cast<int>(blockIdx.x);
  float before[kEach] = {};
  if (end == LinearEnd::kAdd) load_before<T, Shape, end>(args, lane, tile, before);
  stage();
  float* sums = memory.sums;
  const int tiles = static_cast<int>(args.outputs / kTileRows), step = static_cast<int>(gridDim.x);
  for (; tile < tiles; tile += step) {
    multiply(sums);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int number = lane.thread + i * Shape::kThreads;
      const Result<end> result(number, tile);
      if (number >= kResults || result.token >= args.rows) continue;
      finish<T, Shape, end, norm>(args, result, sums, memory.squares, before[i]);
    }
    if (end == LinearEnd::kAdd) load_before<T, Shape, end>(args, lane, tile + step, before);
    // The other half: some warps may still read this one.
    sums = memory.sums + (sums == memory.sums ? Shape::kWarps * Shape::kSums * kGroup : 0);
  }
}

template <class T, class Shape, LinearEnd end, bool norm>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks) skinny(SkinnyLinearArgs args) {
  extern __shared__ uint4 shared[];
  const SkinnyLane lane;
  const SkinnyMemory<T, Shape> memory(shared, args);
  if (norm) request_norm<T, Shape>(args, lane, memory);
  SkinnyWeights<T, Shape, end> weights(args, lane, memory.ring);
#pragma unroll
  for (int slot = 0; slot < Shape::kSlots; ++slot) weights.request();
  let_next_start();
  wait_for_previous();
  SkinnyTokens<Shape> tokens;
  multiply_tiles<T, Shape, end, norm>(
      args, lane, memory, [&] { take_tokens<norm>(args, lane, memory, tokens); },
      [&](float* sums) { multiply_tile(args, lane, memory, tokens, weights, sums); });
}

template <class T, LinearEnd end, bool norm>
void launch_skinny(const SkinnyLinearArgs& args, void* stream) {
  visit_shape(args.rows, args.columns, norm, [&](auto shape) {
    using Shape = decltype(shape);
    constexpr auto kKernel = skinny<T, Shape, end, norm>;
    const int64_t bytes = SkinnyMemory<T, Shape>::bytes(args.rows, args.columns, norm);
    allow_shared<kKernel>(bytes, "skinny_linear");
    const int64_t tiles = args.outputs / kTileRows;
    const int64_t max_blocks = int64_t{multiprocessors()} * Shape::kGrid;
    launch_overlapped<kKernel>(static_cast<unsigned int>(tiles < max_blocks ? tiles : max_blocks),
                               Shape::kThreads, static_cast<size_t>(bytes), stream, args);
  });
  check_launch("skinny_linear");
}

}  // namespace rtp_llm::cuda

// SPDX-License-Identifier: Apache-2.0
// Blocks of packed int8 weights as matrix instructions take them, and where their sums go.
#pragma once

#include <algorithm>

#include "rtp_llm/kernels/cuda/gemm/linear_int8.h"
#include "rtp_llm/kernels/cuda/gpu.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kSteps = kInt8GroupColumns / 4;  // words of a row in a group

// What a lane multiplies in a group of a block of weights: rows lane / 4 and lane / 4 + 8. Groups
// and rows past the last ones are zeros.
struct Weights {
  uint32_t word[2][4];
  float scale[2];

  __device__ void load_from(const Int8LinearArgs& args, int64_t block, int64_t group) {
    if (group >= args.groups) return;
    const int64_t first = block * kInt8BlockRows;
    const int rows = static_cast<int>(std::min<int64_t>(kInt8BlockRows, args.n - first));
    const uint32_t* const words =
        reinterpret_cast<const uint32_t*>(args.weight + first * args.groups * kInt8GroupColumns) +
        group * kSteps * rows;
    const float* const scales = args.scale + first * args.groups + group * rows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = thread_index() % kGroup / 4 + 8 * half;
      const bool there = row < rows;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int step = thread_index() % 4 + 4 * i;
        word[half][i] = there ? __ldg(words + step * rows + row) ^ 0x80808080U : 0;
      }
      scale[half] = there ? __ldg(scales + row) : 0.0f;
    }
  }
};

template <class T>
__device__ inline void store_sum(const Int8LinearArgs& args, int64_t row, int64_t output,
                                 float sum) {
  if (row >= args.m || output >= args.n) return;
  if (args.bias != nullptr) sum += to_float(static_cast<const T*>(args.bias)[output]);
  static_cast<T*>(args.out)[row * args.out_stride + output] = from_float<T>(sum);
}

// The rest of a tile: sums of the warps that split the groups are added in their order.
template <class T, class Sums, int kTiles>
__device__ inline void add_warps(const Int8LinearArgs& args, int64_t block,
                                 const Sums (&sums)[kTiles]) {
  __shared__ float parts[kWarps][kTiles][4][kGroup];
  const int lane = thread_index() % kGroup;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) parts[thread_index() / kGroup][tile][i][lane] = sums[tile].value[i];
  }
  __syncthreads();
  for (int at = thread_index(); at < kTiles * 4 * kGroup; at += kWarps * kGroup) {
    const int tile = at / (4 * kGroup);
    const int i = at / kGroup % 4;
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += parts[warp][tile][i][at % kGroup];
    store_sum<T>(args, 8 * tile + at % 4 * 2 + i % 2,
                 block * kInt8BlockRows + at % kGroup / 4 + 8 * (i / 2), sum);
  }
}

}  // namespace
}  // namespace rtp_llm::cuda

// SPDX-License-Identifier: Apache-2.0
// A tile of grouped_linear in float32, for any number type and on any GPU.
#pragma once

#include "rtp_llm/kernels/cuda/moe/grouped_linear_kernel.h"

namespace rtp_llm::cuda {

template <class T>
struct VectorProducts {
  static constexpr int kDepth = 32;    // columns of x at a time
  static constexpr int kOfThread = 2;  // rows; and four columns

  struct Tile {
    float x[kDepth][kProductRows + 1];
    float weight[kDepth][kProductColumns + 1];

    // What is outside of the rows and columns is zero.
    __device__ void read(const GroupedLinearArgs& args, const ExpertRows& rows, int64_t depth) {
      const T* const from = static_cast<const T*>(args.x);
      const T* const with = static_cast<const T*>(args.weight) + rows.expert * args.n * args.k;
      for (int i = thread_index(); i < kProductRows * kDepth; i += kProductThreads) {
        const int64_t row = rows.first + i / kDepth;
        const int64_t k = depth + i % kDepth;
        const bool there = row < rows.last && k < args.k;
        x[i % kDepth][i / kDepth] = there ? to_float(from[row * args.k + k]) : 0.0f;
      }
      for (int i = thread_index(); i < kProductColumns * kDepth; i += kProductThreads) {
        const int64_t n = rows.column + i / kDepth;
        const int64_t k = depth + i % kDepth;
        const bool there = n < args.n && k < args.k;
        weight[i % kDepth][i / kDepth] = there ? to_float(with[n * args.k + k]) : 0.0f;
      }
    }
  };

  __device__ static void multiply(const GroupedLinearArgs& args, const ExpertRows& rows) {
    __shared__ Tile tile;
    const int row_in_tile = thread_index() / 16 * kOfThread;
    const int column_in_tile = thread_index() % 16;
    float sums[kOfThread][4] = {};
    for (int64_t depth = 0; depth < args.k; depth += kDepth) {
      tile.read(args, rows, depth);
      __syncthreads();
#pragma unroll 8
      for (int k = 0; k < kDepth; ++k) {
#pragma unroll
        for (int r = 0; r < kOfThread; ++r) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            sums[r][c] += tile.x[k][row_in_tile + r] * tile.weight[k][column_in_tile + 16 * c];
          }
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < kOfThread; ++r) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int64_t row = rows.first + row_in_tile + r;
        const int64_t n = rows.column + column_in_tile + 16 * c;
        if (row < rows.last && n < args.n) {
          static_cast<T*>(args.out)[row * args.n + n] = from_float<T>(sums[r][c]);
        }
      }
    }
  }
};

}  // namespace rtp_llm::cuda

// SPDX-License-Identifier: Apache-2.0
// A tile of grouped_linear by the matrix cores of AMD's GPUs, for 16-bit floats: each of four waves
// takes 16 rows of the weight, and multiplies them with all rows of x.
#pragma once

#include "rtp_llm/kernels/cuda/block_memory.h"
#include "rtp_llm/kernels/cuda/matrix_core.h"
#include "rtp_llm/kernels/cuda/moe/grouped_linear_kernel.h"

namespace rtp_llm::cuda {

template <class T>
struct MatrixProducts {
  static constexpr int kDepth = 2 * kMatrixDepth;      // columns of x at a time
  static constexpr int kPitch = kDepth + kMatrixPack;  // lanes meet different banks
  static constexpr int kRowTiles = kProductRows / kMatrixSide;
  static constexpr int64_t kSharedBytes =
      int64_t{kProductRows + kProductColumns} * kPitch * int64_t{sizeof(T)};
  static_assert(kProductThreads / kWave * kMatrixSide == kProductColumns);

  __device__ static void multiply(const GroupedLinearArgs& args, const ExpertRows& rows) {
    T* const x = reinterpret_cast<T*>(block_memory());
    T* const weight = x + kProductRows * kPitch;
    const T* const weight_from = static_cast<const T*>(args.weight) + rows.expert * args.n * args.k;
    const int wave = thread_index() / kWave;
    MatrixSums sums[kRowTiles] = {};
    for (int64_t depth = 0; depth < args.k; depth += kDepth) {
      read<kProductRows>(static_cast<const T*>(args.x), rows.first, rows.last, args.k, depth, x);
      read<kProductColumns>(weight_from, rows.column, args.n, args.k, depth, weight);
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kDepth; k += kMatrixDepth) {
        const auto outputs = load<kMatrixPack>(own_pack(weight, wave * kMatrixSide, k));
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          sums[i] =
              multiply_add(sums[i], outputs, load<kMatrixPack>(own_pack(x, i * kMatrixSide, k)));
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      const int64_t row = rows.first + i * kMatrixSide + matrix_row();
      const int64_t column = rows.column + wave * kMatrixSide + 4 * matrix_quarter();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (row >= rows.last || column + j >= args.n) continue;
        static_cast<T*>(args.out)[row * args.n + column + j] = from_float<T>(sums[i][j]);
      }
    }
  }

 private:
  // kRows rows of a matrix with k columns, from `first` and from column `depth` on; zeros outside.
  template <int kRows>
  __device__ static void read(const T* from, int64_t first, int64_t last, int64_t k, int64_t depth,
                              T* to) {
    constexpr int kPacks = kDepth / kMatrixPack;
    for (int i = thread_index(); i < kRows * kPacks; i += kProductThreads) {
      const int64_t row = first + i / kPacks, column = depth + i % kPacks * kMatrixPack;
      const bool inside = row < last && column < k;
      store(to + i / kPacks * kPitch + i % kPacks * kMatrixPack,
            inside ? load<kMatrixPack>(from + row * k + column) : Pack<T, kMatrixPack>{});
    }
  }

  // What the lane holds of an operand of 16 rows from `row` on.
  __device__ static const T* own_pack(const T* tile, int row, int k) {
    return tile + (row + matrix_row()) * kPitch + k + kMatrixPack * matrix_quarter();
  }
};

}  // namespace rtp_llm::cuda

// SPDX-License-Identifier: Apache-2.0
// Products by the matrix cores of AMD's CDNA GPUs: wave-wide, of 16-bit floats, summed in float32.
// The tests of simulation/ run what is written with them lane by lane.
#pragma once

#include <type_traits>

#include "rtp_llm/kernels/cuda/pack.h"

namespace rtp_llm::cuda {

constexpr int kWave = 64;         // lanes
constexpr int kMatrixSide = 16;   // rows of each operand
constexpr int kMatrixDepth = 32;  // columns of both, which are summed
constexpr int kMatrixPack = 8;    // of them, in a lane

using MatrixSums = float __attribute__((vector_size(16)));

// Where a lane's numbers are: operands in row `lane % 16`, eight columns from 8 * matrix_quarter()
// on; sums in column `lane % 16` (the row of b), four rows (of a) from 4 * matrix_quarter() on.
__device__ inline int matrix_row() { return thread_index() % kMatrixSide; }
__device__ inline int matrix_quarter() { return thread_index() % kWave / kMatrixSide; }

// Over the four lanes of a wave that have the same matrix_row().
template <class F>
__device__ inline float reduce_quarters(float value, F combine) {
  value = combine(value, __shfl_xor(value, 16, kWave));
  return combine(value, __shfl_xor(value, 32, kWave));
}

// sums + a b^T, for a and b of 16 x 32. Columns are only summed over: any order of them will do
// that is the same in a and in b.
template <class T>
__device__ inline MatrixSums multiply_add(MatrixSums sums, const Pack<T, kMatrixPack>& a,
                                          const Pack<T, kMatrixPack>& b) {
  constexpr bool kIsBFloat16 = std::is_same_v<T, BFloat16>;
#if defined(__gfx950__)
#if defined(__clang__)
  using BFloats = __bf16 __attribute__((vector_size(16)));
#else
  using BFloats = short __attribute__((vector_size(16)));  // for the simulation
#endif
  using Halves = _Float16 __attribute__((vector_size(16)));
  if constexpr (kIsBFloat16) {
    return __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(BFloats, a),
                                                   __builtin_bit_cast(BFloats, b), sums, 0, 0, 0);
  } else {
    return __builtin_amdgcn_mfma_f32_16x16x32_f16(__builtin_bit_cast(Halves, a),
                                                  __builtin_bit_cast(Halves, b), sums, 0, 0, 0);
  }
#else
  // Earlier ones multiply 16 columns, four in a lane: first those in the low halves of all lanes.
  using BFloats = short __attribute__((vector_size(8)));
  using Halves = _Float16 __attribute__((vector_size(8)));
  using Four = std::conditional_t<kIsBFloat16, BFloats, Halves>;
  struct Both {
    Four low, high;
  };
  const Both left = __builtin_bit_cast(Both, a), right = __builtin_bit_cast(Both, b);
  if constexpr (kIsBFloat16) {
    sums = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(left.low, right.low, sums, 0, 0, 0);
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(left.high, right.high, sums, 0, 0, 0);
  } else {
    sums = __builtin_amdgcn_mfma_f32_16x16x16f16(left.low, right.low, sums, 0, 0, 0);
    return __builtin_amdgcn_mfma_f32_16x16x16f16(left.high, right.high, sums, 0, 0, 0);
  }
#endif
}

}  // namespace rtp_llm::cuda

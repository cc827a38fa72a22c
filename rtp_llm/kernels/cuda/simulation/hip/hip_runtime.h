// SPDX-License-Identifier: Apache-2.0
// The part of HIP that kernels of the tests use, on the host: in place of HIP's own header of this
// name. A block's threads take turns on one thread of the host (simulation/block.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "rtp_llm/kernels/cuda/simulation/block.h"

#define __device__
#define __global__
#define __host__
#define __launch_bounds__(...)
#define __shared__  // only for arrays that are extern: simulation::run_block has their memory

using std::max;
using std::min;
using hipStream_t = void*;

struct uint4 {
  using Native_vec_ = unsigned int __attribute__((vector_size(16)));
};

// Of the thread whose turn it is.
inline rtp_llm::simulation::Index threadIdx, blockIdx, blockDim, gridDim;

inline void __syncthreads() { rtp_llm::simulation::wait_for_block(); }
inline float __uint_as_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline uint32_t __float_as_uint(float value) { return __builtin_bit_cast(uint32_t, value); }

template <class T>
inline T __shfl_xor(T value, int mask, int) {
  const T* const values = rtp_llm::simulation::share(value);
  const T other = values[rtp_llm::simulation::lane() ^ mask];
  rtp_llm::simulation::wait_for_wave();
  return other;
}

namespace rtp_llm::simulation {

inline float widened(short bits) {
  return __uint_as_float(static_cast<uint32_t>(static_cast<uint16_t>(bits)) << 16);
}
inline float widened(_Float16 value) { return static_cast<float>(value); }

using Sums = float __attribute__((vector_size(16)));

// V_MFMA_F32_16X16X<K>: D = A B + C, of one block, as "AMD Instinct MI300 Instruction Set
// Architecture" (CDNA3), 7.1.4 and its successor for CDNA4 lay the matrices out. With n = K / 4
// numbers in a lane, A[i][k] and B[k][j] are number k % n of lane i + 16 (k / n) and of lane
// j + 16 (k / n); D[i][j] and C[i][j] are number i % 4 of lane j + 16 (i / 4).
template <class V>
inline Sums matrix_product(const V& a, const V& b, Sums c) {
  struct Operands {
    V a, b;
  };
  constexpr int kOfLane = sizeof(V) / sizeof(a[0]);
  const Operands* const lanes = share(Operands{a, b});
  const int j = lane() % 16;
  for (int number = 0; number < 4; ++number) {
    const int i = lane() / 16 * 4 + number;
    for (int k = 0; k < 4 * kOfLane; ++k) {
      const int from = 16 * (k / kOfLane), item = k % kOfLane;
      c[number] += widened(lanes[i + from].a[item]) * widened(lanes[j + from].b[item]);
    }
  }
  wait_for_wave();
  return c;
}

}  // namespace rtp_llm::simulation

#define RTP_LLM_MATRIX_INSTRUCTION(name)                                    \
  template <class V>                                                        \
  inline rtp_llm::simulation::Sums __builtin_amdgcn_mfma_f32_##name(        \
      const V& a, const V& b, rtp_llm::simulation::Sums c, int, int, int) { \
    return rtp_llm::simulation::matrix_product(a, b, c);                    \
  }
RTP_LLM_MATRIX_INSTRUCTION(16x16x16bf16_1k)
RTP_LLM_MATRIX_INSTRUCTION(16x16x16f16)
RTP_LLM_MATRIX_INSTRUCTION(16x16x32_bf16)
RTP_LLM_MATRIX_INSTRUCTION(16x16x32_f16)
#undef RTP_LLM_MATRIX_INSTRUCTION

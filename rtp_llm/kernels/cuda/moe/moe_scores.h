// SPDX-License-Identifier: Apache-2.0
// Scores of a token's experts, N of each lane of a group, and the order among them.
#pragma once

#include "rtp_llm/kernels/common/moe/moe.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {

__device__ inline float lowest() { return -__int_as_float(0x7f800000); }

__device__ inline float ordered(float value) { return value == value ? value : lowest(); }

// Bits that sort like the values; adding zero makes both zeros equal. 0 sorts below all numbers.
__device__ inline uint32_t key_of(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000U;
}

// The highest of N keys, a power of two of them; no more than log2(N) comparisons wait for another.
template <int N>
__device__ inline uint32_t highest(const uint32_t* keys) {
  if constexpr (N == 1) {
    return keys[0];
  } else {
    return max(highest<N / 2>(keys), highest<N / 2>(keys + N / 2));
  }
}

// Scores of the experts lane, lane + 32, ... of one token.
template <int N>
__device__ inline void score(const TopkArgs& args, int64_t token, int lane, float (&scores)[N]) {
  const float* const logits = args.logits + token * args.logits_stride;
  float most = lowest();
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int e = lane + i * kGroup;
    scores[i] = e < args.experts ? logits[e] : lowest();
    most = scores[i] > most ? scores[i] : most;
  }
  if (args.sigmoid) {
#pragma unroll
    for (int i = 0; i < N; ++i) scores[i] = 1.0f / (1.0f + expf(-scores[i]));
    return;
  }
  most = reduce_group(most, Max());
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    scores[i] = expf(scores[i] - most);
    if (lane + i * kGroup < args.experts) sum += scores[i];
  }
  sum = reduce_group(sum, Sum());
#pragma unroll
  for (int i = 0; i < N; ++i) scores[i] /= sum;
}

}  // namespace rtp_llm::cuda

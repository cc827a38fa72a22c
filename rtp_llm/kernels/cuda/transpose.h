// SPDX-License-Identifier: Apache-2.0
// Matrices that neighbouring lanes hold, transposed.
#pragma once

#include "rtp_llm/kernels/cuda/gpu.h"

namespace rtp_llm::cuda {

// The first of the upper lanes against the second of the lower ones.
__device__ inline void swap_with_lane(uint32_t& first, uint32_t& second, bool upper, int mask) {
  const uint32_t other = exchange(upper ? first : second, mask);
  first = upper ? other : first;
  second = upper ? second : other;
}

// Among four lanes: values[i] of lane q becomes values[q] of lane i. Every lane of the group must
// call it.
__device__ inline void transpose_four_lanes(uint32_t (&values)[4]) {
  const int lane = thread_index() % 4;
  const bool odd = lane % 2 != 0, high = lane >= 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) swap_with_lane(values[i], values[i + 1], odd, 1);
#pragma unroll
  for (int i = 0; i < 2; ++i) swap_with_lane(values[i], values[i + 2], high, 2);
}

}  // namespace rtp_llm::cuda

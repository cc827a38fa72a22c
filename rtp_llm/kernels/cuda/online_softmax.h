// SPDX-License-Identifier: Apache-2.0
// The online softmax of a warpgroup's products. Only for sm_90a.
#pragma once

#include "rtp_llm/kernels/cuda/hopper.h"

namespace rtp_llm::cuda {

constexpr float kLog2E = 1.4426950408889634F;

// Which of a thread's products is the number `i` of its row `r` of two, eight apart.
__device__ inline int of_row(int r, int i) { return i / 2 * 4 + r * 2 + i % 2; }

// Scores of a step become weights. What is so far is of all steps, the top without the factor;
// `keep` is what is left of the weights before these.
template <int kScores>
__device__ inline void soften_rows(float (&scores)[kScores], float factor, float (&top_so_far)[2],
                                   float (&total_so_far)[2], float (&keep)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = top_so_far[r];
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) top = fmaxf(top, scores[of_row(r, i)]);
    top = fmaxf(top, exchange(top, 1));
    top = fmaxf(top, exchange(top, 2));
    // A row that has seen nothing yet has no maximum: its weights stay zero.
    const float base = top == -INFINITY ? 0 : top * factor;
    keep[r] = hopper::power_of_two(top_so_far[r] * factor - base);
    top_so_far[r] = top;
    float total = 0;
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      float& score = scores[of_row(r, i)];
      score = hopper::power_of_two(fmaf(score, factor, -base));
      total += score;
    }
    total_so_far[r] = total_so_far[r] * keep[r] + total;
  }
}

}  // namespace rtp_llm::cuda

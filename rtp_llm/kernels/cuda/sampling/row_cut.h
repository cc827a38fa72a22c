// SPDX-License-Identifier: Apache-2.0
// What the filters of a row leave, by which it is sampled, and kernels that come after go.
#pragma once

#include "rtp_llm/kernels/common/sampling/sampling.h"
#include "rtp_llm/kernels/cuda/sampling/vocab_slice.h"

namespace rtp_llm::cuda {

// Tokens up to the key `least` with the weight that they are given; `kept` is their sum, 0 where a
// row takes its best token or is broken.
struct RowCut {
  Weighting weighting;
  Key least;
  Mass kept;

  // x is finite or -inf.
  __device__ Mass operator()(float x, int index) const {
    return is_behind(x, index) ? 0 : weighting(x);
  }
  __device__ float fraction(float x, int index) const {
    return is_behind(x, index) ? 0.0f : weighting.fraction(x);
  }
  // Whether all of these have no weight, by their logits alone.
  template <int n>
  __device__ bool is_behind(const Pack<float, n>& pack) const {
    float most = pack.element[0];
#pragma unroll
    for (int i = 1; i < n; ++i) most = fmaxf(most, pack.element[i]);
    return most < logit_of(least);
  }

 private:
  __device__ bool is_behind(float x, int index) const {
    const float bound = logit_of(least);  // NaN for the least of keys, which leaves nothing out
    return x < bound || (x == bound && index > index_of(least));
  }
};

// `sample`, which also writes what each row is sampled from.
void sample_with_cuts(const SampleArgs& args, RowCut* cuts, void* stream);

}  // namespace rtp_llm::cuda

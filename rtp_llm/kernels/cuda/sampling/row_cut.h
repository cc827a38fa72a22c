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
    const float bound = logit_of(least);  // NaN for the least of keys, which leaves nothing out
    const bool is_behind = x < bound || (x == bound && index > index_of(least));
    return is_behind ? 0 : weighting(x);
  }
};

// `sample`, which also writes what each row is sampled from.
void sample_with_cuts(const SampleArgs& args, RowCut* cuts, void* stream);

}  // namespace rtp_llm::cuda

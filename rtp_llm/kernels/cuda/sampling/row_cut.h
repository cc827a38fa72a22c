// What the filters of a row left, for kernels that come after the one that samples.
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
    return key_of(x, index) >= least ? weighting(x) : 0;
  }
};

// `sample`, which also writes what each row is sampled from.
void sample_with_cuts(const SampleArgs& args, RowCut* cuts, void* stream);

}  // namespace rtp_llm::cuda

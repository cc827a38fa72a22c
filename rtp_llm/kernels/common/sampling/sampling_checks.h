// Checks the tensors of the sampling operators and describes them to kernels, for every device.
// What index tensors hold is not looked at. Results are left to the caller.
#pragma once

#include "rtp_llm/kernels/common/sampling/sampling.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

// Tensors of one number per row.
struct SampleSettings {
  const Tensor& temperature;
  const Tensor& top_k;
  const Tensor& top_p;
  const Tensor& min_p;
  const Tensor& seeds;
  const Tensor& steps;
};

struct Penalties {
  const Tensor& repetition;
  const Tensor& presence;
  const Tensor& frequency;
};

SampleArgs sample_args(const Tensor& logits, const SampleSettings& settings);
TopLogprobsArgs top_logprobs_args(const Tensor& logits, const Tensor& tokens, int64_t k);
PenaltyArgs penalty_args(const Tensor& logits, const Tensor& tokens, const Tensor& cu_tokens,
                         const Tensor& output_lens, const Penalties& penalties);
NgramArgs ngram_args(const Tensor& logits, const Tensor& tokens, const Tensor& cu_tokens,
                     const Tensor& ngram_size);
LogitBiasArgs logit_bias_args(const Tensor& logits, const Tensor& rows, const Tensor& ids,
                              const Tensor& values);

}  // namespace rtp_llm::glue

// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of the sampling operators and describes them to kernels, for every device.
// What index tensors hold is not looked at. Results are left to the caller.
#pragma once

#include "rtp_llm/kernels/common/sampling/calls.h"
#include "rtp_llm/kernels/common/sampling/sampling.h"

namespace rtp_llm::glue {

SampleArgs sample_args(const SampleCall& call);
RejectionSampleArgs rejection_sample_args(const RejectionSampleCall& call);
TopLogprobsArgs top_logprobs_args(const TopLogprobsCall& call);
BitmaskArgs bitmask_args(const ApplyTokenBitmaskCall& call);
PenaltyArgs penalty_args(const ApplyPenaltiesCall& call);
NgramArgs ngram_args(const BanRepeatedNgramsCall& call);
LogitBiasArgs logit_bias_args(const AddLogitBiasCall& call);

}  // namespace rtp_llm::glue

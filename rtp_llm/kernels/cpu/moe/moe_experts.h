// SPDX-License-Identifier: Apache-2.0
// Products of sorted rows with the weights of their experts, and the sum over a token's experts.
#pragma once

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/moe/moe.h"
#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm::cpu {

// Expert by expert, each product on all threads: a row gives the same bits as alone.
void grouped_linear(const GroupedLinearArgs& args, const ParallelFor& parallel);

RTP_LLM_FOR_EACH_ISA(void sum_experts(const SumExpertsArgs& args, int64_t begin, int64_t end);)

}  // namespace rtp_llm::cpu

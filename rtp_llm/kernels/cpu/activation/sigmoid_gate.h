// SPDX-License-Identifier: Apache-2.0
// The gates of attention and of shared experts, for rows [begin, end).
#pragma once

#include "rtp_llm/kernels/common/activation/sigmoid_gate.h"
#include "rtp_llm/kernels/common/cpu_features.h"

namespace rtp_llm::cpu {

RTP_LLM_FOR_EACH_ISA(void sigmoid_gate(const SigmoidGateArgs& args, int64_t begin, int64_t end);)
RTP_LLM_FOR_EACH_ISA(void add_sigmoid_gated(const AddSigmoidGatedArgs& args, int64_t begin,
                                            int64_t end);)

}  // namespace rtp_llm::cpu

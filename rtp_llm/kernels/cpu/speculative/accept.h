// SPDX-License-Identifier: Apache-2.0
// What follows rejected drafts, for outputs and for sequences [begin, end).
#pragma once

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/speculative/accept.h"

namespace rtp_llm::cpu {

RTP_LLM_FOR_EACH_ISA(void accept_drafts(const AcceptDraftsArgs& args, int64_t begin, int64_t end);
                     void correct_positions(const CorrectPositionsArgs& args, int64_t begin,
                                            int64_t end);)

}  // namespace rtp_llm::cpu

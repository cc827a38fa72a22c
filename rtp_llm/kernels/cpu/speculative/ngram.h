// SPDX-License-Identifier: Apache-2.0
// Drafts by n-grams, for outputs [begin, end).
#pragma once

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/speculative/ngram.h"

namespace rtp_llm::cpu {

RTP_LLM_FOR_EACH_ISA(void match_ngrams(const MatchNgramsArgs& args, int64_t begin, int64_t end);
                     void append_accepted(const AppendAcceptedArgs& args, int64_t begin,
                                          int64_t end);)

}  // namespace rtp_llm::cpu

// SPDX-License-Identifier: Apache-2.0
// Drafts by n-grams.
#pragma once

#include "rtp_llm/kernels/common/speculative/ngram.h"
#include "rtp_llm/kernels/xpu/queue.h"

namespace rtp_llm::xpu {

void match_ngrams(Queue& queue, const MatchNgramsArgs& args);
void append_accepted(Queue& queue, const AppendAcceptedArgs& args);

}  // namespace rtp_llm::xpu

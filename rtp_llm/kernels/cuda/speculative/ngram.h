// SPDX-License-Identifier: Apache-2.0
// Drafts by n-grams of histories on the device. Outputs without a history draft -1; rows outside
// are not touched.
#pragma once

#include "rtp_llm/kernels/common/speculative/ngram.h"

namespace rtp_llm::cuda {

// A block of threads for each output reads its history once, 16 bytes at a time where rows begin at
// multiples of that.
void match_ngrams(const MatchNgramsArgs& args, void* stream);

void append_accepted(const AppendAcceptedArgs& args, void* stream);

}  // namespace rtp_llm::cuda

// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of drafts by n-grams and describes them to kernels, for every device. What
// index tensors hold is not looked at.
#pragma once

#include "rtp_llm/kernels/common/speculative/calls.h"
#include "rtp_llm/kernels/common/speculative/ngram.h"

namespace rtp_llm::glue {

Prepared<MatchNgramsArgs, void> prepare(const MatchNgramsCall& call);
Prepared<AppendAcceptedArgs, void> prepare(const AppendAcceptedCall& call);

}  // namespace rtp_llm::glue

// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of the choice among ranks' tokens and describes them to kernels.
#pragma once

#include "rtp_llm/kernels/common/collective/best_token.h"
#include "rtp_llm/kernels/common/collective/calls.h"
#include "rtp_llm/kernels/common/collective/rank_buffers_checks.h"

namespace rtp_llm::glue {

Prepared<BestTokenArgs, void> prepare(const BestTokenCall& call);

}  // namespace rtp_llm::glue

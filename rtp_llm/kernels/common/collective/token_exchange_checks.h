// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of tokens on their way to experts and describes them to kernels, for every
// device.
#pragma once

#include "rtp_llm/kernels/common/collective/calls.h"
#include "rtp_llm/kernels/common/collective/rank_buffers_checks.h"
#include "rtp_llm/kernels/common/collective/token_exchange.h"

namespace rtp_llm::glue {

Prepared<DispatchTokensArgs, DispatchTokensCall::Result> prepare(const DispatchTokensCall& call);
Prepared<CombineTokensArgs, Tensor> prepare(const CombineTokensCall& call);

}  // namespace rtp_llm::glue

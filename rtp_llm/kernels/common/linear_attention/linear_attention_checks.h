// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of linear attention and describes them to kernels, for every device. What
// index tensors hold is not looked at.
#pragma once

#include "rtp_llm/kernels/common/linear_attention/calls.h"
#include "rtp_llm/kernels/common/linear_attention/linear_attention.h"

namespace rtp_llm::glue {

Prepared<CausalConv1dArgs, Tensor> prepare(const CausalConv1dCall& call);
Prepared<GatedDeltaRuleArgs, Tensor> prepare(const GatedDeltaRuleCall& call);
Prepared<Mamba2ScanArgs, Tensor> prepare(const Mamba2ScanCall& call);

}  // namespace rtp_llm::glue

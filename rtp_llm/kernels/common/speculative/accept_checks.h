// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of what follows rejected drafts and describes them to kernels, for every
// device. What index tensors hold is not looked at.
#pragma once

#include "rtp_llm/kernels/common/speculative/accept.h"
#include "rtp_llm/kernels/common/speculative/calls.h"

namespace rtp_llm::glue {

Prepared<AcceptDraftsArgs, Tensor> prepare(const AcceptDraftsCall& call);
Prepared<CorrectPositionsArgs, void> prepare(const CorrectPositionsCall& call);

}  // namespace rtp_llm::glue

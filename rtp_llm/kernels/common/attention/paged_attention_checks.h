// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of paged_attention and describes them to kernels, for every device. What index
// tensors hold is not looked at.
#pragma once

#include "rtp_llm/kernels/common/attention/calls.h"
#include "rtp_llm/kernels/common/attention/paged_attention.h"

namespace rtp_llm::glue {

// A new result: contiguous, like q.
Prepared<PagedAttentionArgs, Tensor> prepare(const PagedAttentionCall& call);

}  // namespace rtp_llm::glue

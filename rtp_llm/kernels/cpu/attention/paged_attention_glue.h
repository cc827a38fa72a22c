// SPDX-License-Identifier: Apache-2.0
// The one call of the kernel of paged attention, for every operator that is made of it.
#pragma once

#include "rtp_llm/kernels/common/attention/paged_attention.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::cpu {

// A new tensor of args' tokens, heads and values, of the device and number type of q.
glue::Tensor attend(const glue::Tensor& q, PagedAttentionArgs args);

}  // namespace rtp_llm::cpu

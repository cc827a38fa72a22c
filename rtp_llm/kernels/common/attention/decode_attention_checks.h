// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of decode_attention and describes them to kernels. What index tensors hold is
// not looked at.
#pragma once

#include "rtp_llm/kernels/common/attention/calls.h"
#include "rtp_llm/kernels/common/attention/decode_attention.h"

namespace rtp_llm::glue {

// `out` and `parts` are left to the caller.
DecodeAttentionArgs decode_attention_args(const DecodeAttentionCall& call);

}  // namespace rtp_llm::glue

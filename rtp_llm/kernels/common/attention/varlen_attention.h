// SPDX-License-Identifier: Apache-2.0
// Arguments of the attention of encoders: that over a paged cache where a sequence's own keys are
// its only block, which starts at the sequence's first token.
#pragma once

#include "rtp_llm/kernels/common/attention/paged_attention.h"

namespace rtp_llm {

struct VarlenAttentionArgs {
  PagedAttentionArgs attention;
  int64_t max_seqlen;
};

}  // namespace rtp_llm

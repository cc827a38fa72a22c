// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/attention/varlen_attention.h"

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/xpu/attention/paged_attention.h"

namespace rtp_llm::xpu {

// Keys are only cut into parts where they outnumber the queries by far.
RTP_LLM_OPERATOR(varlen_attention)
void varlen_attention(Queue& queue, const VarlenAttentionArgs& args) {
  paged_attention(queue, {args.attention, nullptr, 1});
}

}  // namespace rtp_llm::xpu

// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/attention/varlen_attention.h"

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/cuda/attention/prompt_attention.h"

namespace rtp_llm::cuda {

// A sequence of so few tokens that its keys could be cut into parts has too few keys for that:
// there is no scratch.
RTP_LLM_OPERATOR(varlen_attention)
void varlen_attention(const VarlenAttentionArgs& args, void* stream) {
  const AttentionBounds bounds{args.max_seqlen, args.max_seqlen};
  if (takes_prompt(args.attention, bounds)) return prompt_attention(args.attention, bounds, stream);
  paged_attention(args.attention, bounds, nullptr, stream);
}

}  // namespace rtp_llm::cuda

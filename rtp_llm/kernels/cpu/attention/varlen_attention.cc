// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/attention/varlen_attention.h"

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/cpu/attention/paged_attention.h"

namespace rtp_llm::cpu {

int64_t varlen_attention_scratch(const VarlenAttentionArgs& args, int threads) {
  return static_cast<int64_t>(paged_attention_scratch_bytes(args.attention, threads));
}

RTP_LLM_OPERATOR(varlen_attention, scratch)
void varlen_attention(const VarlenAttentionArgs& args, void* scratch, const ParallelFor& parallel) {
  run_paged_attention(args.attention, scratch, parallel);
}

}  // namespace rtp_llm::cpu

// SPDX-License-Identifier: Apache-2.0
// The operators whose index tables are checked by the plan of paged attention.
#include "rtp_llm/kernels/common/mla/mla.h"
#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/cpu/attention/paged_attention.h"

namespace rtp_llm::cpu {

// Throws std::runtime_error when lengths, table and cache do not fit together: plans read them.
int64_t paged_attention_scratch(const PagedAttentionArgs& args, int threads) {
  check_paged_attention(args);
  return static_cast<int64_t>(paged_attention_scratch_bytes(args, threads));
}

RTP_LLM_OPERATOR(paged_attention, scratch)
void paged_attention(const PagedAttentionArgs& args, void* scratch, const ParallelFor& parallel) {
  run_paged_attention(args, scratch, parallel);
}

int64_t mla_attention_scratch(const MlaAttentionArgs& args, int threads) {
  return paged_attention_scratch(args, threads);
}

RTP_LLM_OPERATOR(mla_attention, scratch)
void mla_attention(const MlaAttentionArgs& args, void* scratch, const ParallelFor& parallel) {
  run_paged_attention(args, scratch, parallel);
}

}  // namespace rtp_llm::cpu

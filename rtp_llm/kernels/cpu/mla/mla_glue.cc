// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/mla/calls.h"
#include "rtp_llm/kernels/common/mla/mla_checks.h"
#include "rtp_llm/kernels/cpu/attention/paged_attention_glue.h"

namespace rtp_llm::cpu {
namespace {

using glue::Tensor;

// The kernel of paged attention, on keys that are values too.
Tensor attention(const glue::MlaAttentionCall& call) {
  return attend(call.q, glue::mla_attention_args({call.q, call.cache, call.cu_seqlens_q,
                                                  call.seq_lens, call.block_table},
                                                 call.latent_size, call.scale));
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CPU, library) { glue::implement<&attention>(library); }

}  // namespace rtp_llm::cpu

// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/mla/mla.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {

RTP_LLM_OPERATOR(mla_rotate_and_store)
void mla_rotate_and_store(Queue& queue, const MlaRotateAndStoreArgs& args) {
  const int64_t work = std::max(args.latent_size, args.num_heads * args.rope_size / 2);
  submit(queue,
         {"mla_kernel", entry("mla_rotate_and_store", args.dtype), args.tokens, items_for(work)},
         args);
}

RTP_LLM_OPERATOR(mla_attention)
void mla_attention(Queue& queue, const MlaAttentionArgs& args) {
  if (args.head_dim > kMaxMlaWidth || args.value_dim > kMaxLatent) {
    throw std::runtime_error("mla_attention: latents of " + std::to_string(args.value_dim) +
                             " and queries of " + std::to_string(args.head_dim) +
                             " elements; this device takes up to " + std::to_string(kMaxLatent) +
                             " and " + std::to_string(kMaxMlaWidth));
  }
  const int64_t groups = args.num_tokens * ceil_div(args.num_heads, kMlaHeads);
  submit(queue, {"mla_kernel", entry("mla_attention", args.dtype), groups, kMlaItems}, args);
}

}  // namespace rtp_llm::xpu

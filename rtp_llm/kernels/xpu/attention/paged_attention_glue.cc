// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/attention/calls.h"
#include "rtp_llm/kernels/common/attention/paged_attention_checks.h"
#include "rtp_llm/kernels/xpu/attention/paged_attention.h"
#include "rtp_llm/kernels/xpu/on_queue.h"

namespace rtp_llm::xpu {
namespace {

using glue::Tensor;

Tensor attend(const glue::PagedAttentionCall& call) {
  auto [args, out] = glue::prepare(call);
  RTP_LLM_CHECK(args.head_dim <= kMaxHeadDim, "paged_attention: q is ", call.q.describe(),
                "; expected heads of at most ", kMaxHeadDim, " elements");
  const int32_t parts = attention_parts(call.max_seqlen_q, call.max_seqlen_k);
  const Tensor partials =
      glue::empty(call.q, {attention_scratch_floats(args, parts)}, DType::kFloat32);
  const OnQueue device(call.q);
  paged_attention(device.queue(), {args, partials.data<float>(), parts});
  return std::move(out);
}

}  // namespace

RTP_LLM_XPU_OPERATORS(library) { glue::implement<&attend>(library); }

}  // namespace rtp_llm::xpu

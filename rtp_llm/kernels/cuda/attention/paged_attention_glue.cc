// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/attention/calls.h"
#include "rtp_llm/kernels/common/attention/paged_attention_checks.h"
#include "rtp_llm/kernels/cuda/attention/prompt_attention.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

Tensor attention(const glue::PagedAttentionCall& call) {
  auto [args, out] = glue::prepare(call);
  RTP_LLM_CHECK(call.max_seqlen_q >= 0 && call.max_seqlen_k >= 0,
                "paged_attention: max_seqlen_q is ", call.max_seqlen_q, " and max_seqlen_k ",
                call.max_seqlen_k, "; expected no negative number");
  const AttentionBounds bounds{call.max_seqlen_q, call.max_seqlen_k};
  const OnDevice device(call.q);
  if (takes_prompt(args, bounds)) {
    prompt_attention(args, bounds, device.stream());
    return std::move(out);
  }
  const Tensor scratch =
      glue::empty(call.q, {paged_attention_scratch(args, bounds)}, DType::kFloat32);
  paged_attention(args, bounds, scratch.data<float>(), device.stream());
  return std::move(out);
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) { glue::implement<&attention>(library); }

}  // namespace rtp_llm::cuda

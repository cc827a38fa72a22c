// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/attention/paged_attention_glue.h"
#include "rtp_llm/kernels/common/attention/calls.h"

#include "rtp_llm/kernels/common/attention/paged_attention_checks.h"
#include "rtp_llm/kernels/cpu/attention/paged_attention.h"

namespace rtp_llm::cpu {

glue::Tensor attend(const glue::Tensor& q, PagedAttentionArgs args) {
  glue::Tensor out = glue::empty(q, {args.num_tokens, args.num_heads, args.value_dim}, args.dtype);
  args.out = out.data();
  check_paged_attention(args);
  const ParallelFor& parallel = glue::parallel_for();
  const size_t bytes = paged_attention_scratch_bytes(args, parallel.num_threads());
  // torch aligns to 64 bytes.
  const glue::Tensor scratch = glue::empty(q, {static_cast<int64_t>(bytes)}, DType::kInt8);
  run_paged_attention(args, scratch.data(), parallel);
  return out;
}

namespace {

using glue::Tensor;

// The maximum lengths serve devices that may not look into the index tensors.
Tensor paged_attention(const glue::PagedAttentionCall& call) {
  return attend(call.q, glue::paged_attention_args(call));
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CPU, library) { glue::implement<&paged_attention>(library); }

}  // namespace rtp_llm::cpu

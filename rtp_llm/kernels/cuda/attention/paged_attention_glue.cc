#include "rtp_llm/kernels/common/attention/paged_attention_checks.h"
#include "rtp_llm/kernels/cuda/on_device.h"
#include "rtp_llm/kernels/cuda/attention/prompt_attention.h"

namespace rtp_llm::cuda {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

Tensor attention(const Tensor& q, const Tensor& kv_cache, const Tensor& cu_seqlens_q,
                 const Tensor& seq_lens, const Tensor& block_table, int64_t max_seqlen_q,
                 int64_t max_seqlen_k, double scale, bool causal, int64_t window, double soft_cap,
                 const OptionalTensor& sinks) {
  PagedAttentionArgs args = glue::paged_attention_args(
      {q, kv_cache, cu_seqlens_q, seq_lens, block_table, sinks}, {scale, causal, window, soft_cap});
  RTP_LLM_CHECK(max_seqlen_q >= 0 && max_seqlen_k >= 0, "paged_attention: max_seqlen_q is ",
                max_seqlen_q, " and max_seqlen_k ", max_seqlen_k, "; expected no negative number");
  Tensor out = glue::empty(q, {q.size(0), q.size(1), q.size(2)}, q.dtype());
  args.out = out.data();
  const AttentionBounds bounds{max_seqlen_q, max_seqlen_k};
  const OnDevice device(q);
  if (takes_prompt(args, bounds)) {
    prompt_attention(args, bounds, device.stream());
    return out;
  }
  const Tensor scratch = glue::empty(q, {paged_attention_scratch(args, bounds)}, DType::kFloat32);
  paged_attention(args, bounds, scratch.data<float>(), device.stream());
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CUDA, library) {
  glue::implement<attention>(library, "paged_attention");
}

}  // namespace rtp_llm::cuda

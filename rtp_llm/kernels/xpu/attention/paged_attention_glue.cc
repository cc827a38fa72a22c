#include "rtp_llm/kernels/common/attention/paged_attention_checks.h"
#include "rtp_llm/kernels/xpu/on_queue.h"
#include "rtp_llm/kernels/xpu/attention/paged_attention.h"

namespace rtp_llm::xpu {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

Tensor attend(const Tensor& q, const Tensor& kv_cache, const Tensor& cu_seqlens_q,
              const Tensor& seq_lens, const Tensor& block_table, int64_t max_seqlen_q,
              int64_t max_seqlen_k, double scale, bool causal, int64_t window, double soft_cap,
              const OptionalTensor& sinks) {
  PagedAttentionArgs args = glue::paged_attention_args(
      {q, kv_cache, cu_seqlens_q, seq_lens, block_table, sinks}, {scale, causal, window, soft_cap});
  RTP_LLM_CHECK(args.head_dim <= kMostHeadDim, "paged_attention: q is ", q.describe(),
                "; expected heads of at most ", kMostHeadDim, " elements");
  Tensor out = glue::empty(q, {q.size(0), q.size(1), q.size(2)}, q.dtype());
  args.out = out.data();
  const int32_t parts = attention_parts(max_seqlen_q, max_seqlen_k);
  const Tensor partials = glue::empty(q, {attention_scratch_floats(args, parts)}, DType::kFloat32);
  const OnQueue device(q);
  paged_attention(device.queue(), {args, partials.data<float>(), parts});
  return out;
}

}  // namespace

RTP_LLM_XPU_OPERATORS(library) { glue::implement<attend>(library, "paged_attention"); }

}  // namespace rtp_llm::xpu

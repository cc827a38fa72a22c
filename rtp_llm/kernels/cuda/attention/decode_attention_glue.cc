#include "rtp_llm/kernels/common/attention/decode_attention_checks.h"
#include "rtp_llm/kernels/cuda/attention/decode_attention.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

Tensor attend(const Tensor& qkv, const Tensor& kv_cache, const Tensor& counters,
              const Tensor& positions, const Tensor& seq_lens, const Tensor& slot_mapping,
              const Tensor& block_table, double scale, const OptionalTensor& cos_sin,
              const OptionalTensor& q_weight, const OptionalTensor& k_weight, double eps,
              bool is_neox, int64_t rotary_offset, int64_t window, double soft_cap,
              const OptionalTensor& k_scale, const OptionalTensor& v_scale, bool early) {
  DecodeAttentionArgs args =
      glue::decode_attention_args({qkv, kv_cache, counters, positions, seq_lens, slot_mapping,
                                   block_table, cos_sin, q_weight, k_weight, k_scale, v_scale},
                                  {scale, eps, is_neox, rotary_offset, window, soft_cap, early});
  Tensor out =
      glue::empty(qkv, {args.num_seqs, int64_t{args.num_heads} * args.head_dim}, args.dtype);
  const Tensor parts = glue::empty(qkv, {decode_attention_scratch(args)}, DType::kFloat32);
  args.out = out.data();
  args.parts = parts.data<float>();
  const OnDevice device(qkv);
  decode_attention(args, device.stream());
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CUDA, library) {
  glue::implement<attend>(library, "decode_attention");
}

}  // namespace rtp_llm::cuda

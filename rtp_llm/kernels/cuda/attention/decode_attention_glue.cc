// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/attention/calls.h"
#include "rtp_llm/kernels/common/attention/decode_attention_checks.h"
#include "rtp_llm/kernels/cuda/attention/decode_attention.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

Tensor attend(const glue::DecodeAttentionCall& call) {
  DecodeAttentionArgs args = glue::decode_attention_args(call);
  Tensor out =
      glue::empty(call.qkv, {args.num_seqs, int64_t{args.num_heads} * args.head_dim}, args.dtype);
  const Tensor parts = glue::empty(call.qkv, {decode_attention_scratch(args)}, DType::kFloat32);
  args.out = out.data();
  args.parts = parts.data<float>();
  const OnDevice device(call.qkv);
  decode_attention(args, device.stream());
  return out;
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) { glue::implement<&attend>(library); }

}  // namespace rtp_llm::cuda

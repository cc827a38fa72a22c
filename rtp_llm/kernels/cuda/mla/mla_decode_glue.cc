// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/common/mla/calls.h"
#include "rtp_llm/kernels/common/mla/mla_checks.h"
#include "rtp_llm/kernels/cuda/mla/mla_decode.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

Tensor decode(const glue::MlaDecodeCall& call) {
  PagedAttentionArgs args = glue::mla_attention_args(
      {call.q, call.cache, call.cu_seqlens_q, call.seq_lens, call.block_table}, call.latent_size,
      call.scale);
  Tensor out =
      glue::empty(call.q, {call.q.size(0), call.q.size(1), call.latent_size}, call.q.dtype());
  args.out = out.data();
  const OnDevice device(call.q);
  RTP_LLM_CHECK(takes_mla_decode(args), "mla_decode: q is ", call.q.describe(), " for ",
                args.num_seqs, " sequences and a cache of ", call.cache.describe(),
                "; expected a token of each sequence, latents of 512 and keys of 64 in 16 bits, "
                "aligned to 16 bytes, and blocks of 8, 16, 32 or a multiple of 64 on a GPU of "
                "compute capability 9.0");
  const int splits = mla_decode_splits(args, call.max_seqlen_k);
  const auto floats = static_cast<int64_t>(mla_decode_scratch(args, splits));
  const Tensor scratch = glue::empty(call.q, {floats}, DType::kFloat32);
  mla_decode(args, splits, scratch.data<float>(), device.stream());
  return out;
}

}  // namespace

RTP_LLM_REGISTER_KERNELS(rtp_llm, CUDA, library) { glue::implement<&decode>(library); }

}  // namespace rtp_llm::cuda

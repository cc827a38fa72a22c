#include "rtp_llm/kernels/common/mla/mla_checks.h"
#include "rtp_llm/kernels/cuda/mla/mla_decode.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::Tensor;

Tensor decode(const Tensor& q, const Tensor& cache, const Tensor& cu_seqlens_q,
              const Tensor& seq_lens, const Tensor& block_table, int64_t latent_size,
              int64_t max_seqlen_k, double scale) {
  PagedAttentionArgs args =
      glue::mla_attention_args({q, cache, cu_seqlens_q, seq_lens, block_table}, latent_size, scale);
  Tensor out = glue::empty(q, {q.size(0), q.size(1), latent_size}, q.dtype());
  args.out = out.data();
  const OnDevice device(q);
  RTP_LLM_CHECK(takes_mla_decode(args), "mla_decode: q is ", q.describe(), " for ", args.num_seqs,
                " sequences and a cache of ", cache.describe(),
                "; expected a token of each sequence, latents of 512 and keys of 64 in 16 bits, "
                "aligned to 16 bytes, and blocks of 8, 16, 32 or a multiple of 64 on a GPU of "
                "compute capability 9.0");
  const int splits = mla_decode_splits(args, max_seqlen_k);
  const auto floats = static_cast<int64_t>(mla_decode_scratch(args, splits));
  const Tensor scratch = glue::empty(q, {floats}, DType::kFloat32);
  mla_decode(args, splits, scratch.data<float>(), device.stream());
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CUDA, library) {
  glue::implement<decode>(library, "mla_decode");
}

}  // namespace rtp_llm::cuda

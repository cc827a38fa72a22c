#include "rtp_llm/kernels/arguments/fused_rope_checks.h"
#include "rtp_llm/kernels/cuda/fused_rope.h"
#include "rtp_llm/kernels/cuda/on_device.h"

namespace rtp_llm::cuda {
namespace {

using glue::OptionalTensor;
using glue::Tensor;

void rope(const Tensor& q, const Tensor& k, const OptionalTensor& v, const OptionalTensor& q_out,
          const OptionalTensor& k_out, const OptionalTensor& v_out, const OptionalTensor& q_weight,
          const OptionalTensor& k_weight, double eps, const OptionalTensor& cos_sin,
          const OptionalTensor& positions, const OptionalTensor& cu_seqlens,
          const OptionalTensor& past_lengths, const OptionalTensor& offsets,
          const OptionalTensor& slots, const OptionalTensor& k_cache, const OptionalTensor& v_cache,
          const OptionalTensor& k_scale, const OptionalTensor& v_scale,
          const OptionalTensor& scales, bool is_neox, int64_t rotary_offset, int64_t height_pairs,
          int64_t width_pairs, bool axes_interleaved, int64_t log_length, int64_t padded_queries) {
  const FusedRopeArgs args =
      glue::fused_rope_args({q, k, v, q_out, k_out, v_out, q_weight, k_weight},
                            {cos_sin, positions, cu_seqlens, past_lengths},
                            {offsets, slots, k_cache, v_cache, k_scale, v_scale, scales},
                            {eps, is_neox, rotary_offset, height_pairs, width_pairs,
                             axes_interleaved, log_length, padded_queries});
  const OnDevice device(q);
  fused_rope(args, device.stream());
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CUDA, library) {
  glue::implement<rope>(library, "rotate_and_store");
}

}  // namespace rtp_llm::cuda

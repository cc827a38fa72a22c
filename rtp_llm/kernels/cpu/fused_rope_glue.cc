#include "rtp_llm/kernels/arguments/fused_rope_checks.h"
#include "rtp_llm/kernels/cpu/fused_rope.h"

namespace rtp_llm::cpu {
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
  const int64_t row_bytes = (q.size(1) + 2 * k.size(1)) * q.size(2) * 32;
  glue::run(&fused_rope, args, args.tokens, grain_rows(row_bytes));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rtp_llm, CPU, library) {
  glue::implement<rope>(library, "rotate_and_store");
}

}  // namespace rtp_llm::cpu

// Checks the tensors of rotate_and_store and describes them to kernels, for every device. What
// index tensors hold is not looked at.
#pragma once

#include "rtp_llm/kernels/common/rope/fused_rope.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

struct FusedRopeHeads {
  const Tensor& q;
  const Tensor& k;
  const OptionalTensor& v;
  const OptionalTensor& q_out;
  const OptionalTensor& k_out;
  const OptionalTensor& v_out;
  const OptionalTensor& q_weight;
  const OptionalTensor& k_weight;
};

struct FusedRopePlaces {
  const OptionalTensor& cos_sin;
  const OptionalTensor& positions;
  const OptionalTensor& cu_seqlens;
  const OptionalTensor& past;
};

struct FusedRopeCache {
  const OptionalTensor& offsets;
  const OptionalTensor& slots;
  const OptionalTensor& k_cache;
  const OptionalTensor& v_cache;
  const OptionalTensor& k_scale;
  const OptionalTensor& v_scale;
  const OptionalTensor& scales;
};

struct FusedRopeOptions {
  double eps;
  bool is_neox;
  int64_t rotary_offset;
  int64_t height_pairs;
  int64_t width_pairs;
  bool axes_interleaved;
  int64_t log_length;
  int64_t padded_queries;
};

FusedRopeArgs fused_rope_args(const FusedRopeHeads& heads, const FusedRopePlaces& places,
                              const FusedRopeCache& cache, const FusedRopeOptions& options);

// The operator rotate_and_store of a device: `launch` runs its kernel on the device of `q`.
template <void (*launch)(const Tensor& q, const FusedRopeArgs& args)>
void rotate_and_store(const Tensor& q, const Tensor& k, const OptionalTensor& v,
                      const OptionalTensor& q_out, const OptionalTensor& k_out,
                      const OptionalTensor& v_out, const OptionalTensor& q_weight,
                      const OptionalTensor& k_weight, double eps, const OptionalTensor& cos_sin,
                      const OptionalTensor& positions, const OptionalTensor& cu_seqlens,
                      const OptionalTensor& past_lengths, const OptionalTensor& offsets,
                      const OptionalTensor& slots, const OptionalTensor& k_cache,
                      const OptionalTensor& v_cache, const OptionalTensor& k_scale,
                      const OptionalTensor& v_scale, const OptionalTensor& scales, bool is_neox,
                      int64_t rotary_offset, int64_t height_pairs, int64_t width_pairs,
                      bool axes_interleaved, int64_t log_length, int64_t padded_queries) {
  launch(q, fused_rope_args({q, k, v, q_out, k_out, v_out, q_weight, k_weight},
                            {cos_sin, positions, cu_seqlens, past_lengths},
                            {offsets, slots, k_cache, v_cache, k_scale, v_scale, scales},
                            {eps, is_neox, rotary_offset, height_pairs, width_pairs,
                             axes_interleaved, log_length, padded_queries}));
}

}  // namespace rtp_llm::glue

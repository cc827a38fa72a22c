// Checks the tensors of rotate_and_store and describes them to kernels, for every device. What
// index tensors hold is not looked at.
#pragma once

#include "rtp_llm/kernels/arguments/fused_rope.h"
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

}  // namespace rtp_llm::glue

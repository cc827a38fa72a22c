// Checks the tensors of decode_attention and describes them to kernels. What index tensors hold is
// not looked at.
#pragma once

#include "rtp_llm/kernels/common/attention/decode_attention.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

struct DecodeTensors {
  const Tensor& qkv;
  const Tensor& kv_cache;
  const Tensor& counters;
  const Tensor& positions;
  const Tensor& seq_lens;
  const Tensor& slot_mapping;
  const Tensor& block_table;
  const OptionalTensor& cos_sin;
  const OptionalTensor& q_weight;
  const OptionalTensor& k_weight;
  const OptionalTensor& k_scale;
  const OptionalTensor& v_scale;
};

struct DecodeOptions {
  double scale;
  double eps;
  bool is_neox;
  int64_t rotary_offset;
  int64_t window;
  double soft_cap;
  bool early;
};

// `out` and `parts` are left to the caller.
DecodeAttentionArgs decode_attention_args(const DecodeTensors& tensors,
                                          const DecodeOptions& options);

}  // namespace rtp_llm::glue

// Checks the tensors of rope_kv_write and describes them to kernels, for every device. What index
// tensors hold is not looked at: that is the device's own matter.
#pragma once

#include "rtp_llm/kernels/common/rope/rope.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

struct RopeTensors {
  const Tensor& qkv;
  const Tensor& positions;
  const OptionalTensor& cos_sin;
  const OptionalTensor& kv_cache;
  const OptionalTensor& slot_mapping;
};

struct RopeLayout {
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  bool is_neox;
  int64_t rotary_offset;
};

RopeKvWriteArgs rope_kv_write_args(const RopeTensors& tensors, const RopeLayout& layout);

}  // namespace rtp_llm::glue

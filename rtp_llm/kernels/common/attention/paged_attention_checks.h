// Checks the tensors of paged_attention and describes them to kernels, for every device. What index
// tensors hold is not looked at.
#pragma once

#include "rtp_llm/kernels/common/attention/paged_attention.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

struct AttentionTensors {
  const Tensor& q;
  const Tensor& kv_cache;
  const Tensor& cu_seqlens_q;
  const Tensor& seq_lens;
  const Tensor& block_table;
  const OptionalTensor& sinks;
};

struct AttentionOptions {
  double scale;
  bool causal;
  int64_t window;
  double soft_cap;
};

// `out` is left to the caller: contiguous, like q.
PagedAttentionArgs paged_attention_args(const AttentionTensors& tensors,
                                        const AttentionOptions& options);

}  // namespace rtp_llm::glue

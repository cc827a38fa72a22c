// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of multi-head latent attention and describes them to kernels, for every
// device. What index tensors hold is not looked at.
#pragma once

#include "rtp_llm/kernels/common/mla/calls.h"
#include "rtp_llm/kernels/common/mla/mla.h"

namespace rtp_llm::glue {

struct MlaAttentionTensors {
  const Tensor& q;
  const Tensor& cache;
  const Tensor& cu_seqlens_q;
  const Tensor& seq_lens;
  const Tensor& block_table;
};

// Paged attention with one KV head; its values are the first `latent_size` elements of its keys.
// The caller sets `out` [tokens, heads, latent_size].
PagedAttentionArgs mla_attention_args(const MlaAttentionTensors& tensors, int64_t latent_size,
                                      double scale);

}  // namespace rtp_llm::glue

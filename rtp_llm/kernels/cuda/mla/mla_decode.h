// SPDX-License-Identifier: Apache-2.0
// Decode steps of multi-head latent attention on Hopper: one new token of each sequence.
#pragma once

#include <cstddef>

#include "rtp_llm/kernels/common/attention/paged_attention.h"

namespace rtp_llm::cuda {

// Whether this GPU has the kernel, and it takes such tensors.
bool takes_mla_decode(const PagedAttentionArgs& args);

// Parts that the keys are cut into, so that the GPU is full with sequences of `max_keys`.
int mla_decode_splits(const PagedAttentionArgs& args, int64_t max_keys);

// Floats of scratch: sums and statistics of the parts.
size_t mla_decode_scratch(const PagedAttentionArgs& args, int splits);

// Writes every row of out [tokens, heads, value_dim]; as many sequences as tokens.
void mla_decode(const PagedAttentionArgs& args, int splits, float* scratch, void* stream);

}  // namespace rtp_llm::cuda

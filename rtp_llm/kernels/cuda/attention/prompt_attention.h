// SPDX-License-Identifier: Apache-2.0
// Attention of prompts, chunks and mixed batches over a paged KV cache at the rate of Hopper's
// tensor cores, in 16-bit floats.
//
// A block works on a tile of 128 query rows (the query heads of one KV head, for some tokens). One
// warp streams the pages of keys and values into shared memory with the copy engine; two warpgroups
// of 64 rows each multiply, and the products of one tile of keys run while the softmax of the one
// before it is computed (the schedule of FlashAttention-3, https://arxiv.org/abs/2407.08608).
#pragma once

#include "rtp_llm/kernels/cuda/attention/paged_attention.h"

namespace rtp_llm::cuda {

// Whether prompt_attention can do this: the GPU (this process's current one), the types, the sizes
// and the alignment. On AMD GPUs never.
bool takes_prompt(const PagedAttentionArgs& args, const AttentionBounds& bounds);

// As paged_attention. RuntimeError when the copy engine refuses a tensor.
void prompt_attention(const PagedAttentionArgs& args, const AttentionBounds& bounds, void* stream);

}  // namespace rtp_llm::cuda

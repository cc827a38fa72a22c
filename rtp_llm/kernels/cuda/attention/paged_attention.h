// SPDX-License-Identifier: Apache-2.0
// Attention over a paged KV cache: kernels that serve the whole contract, in float32, and on AMD's
// GPUs by matrix cores where type and alignment allow it.
//
// A block of threads works on a tile of query rows (the query heads of one KV head, for a few
// tokens) and a part of the keys. Sequences are cut into parts when there are few query rows, as in
// decoding; the parts are then put together by a second kernel. How a sequence is cut depends on
// its own length alone.
#pragma once

#include "rtp_llm/kernels/common/attention/paged_attention.h"

namespace rtp_llm::cuda {

// Bounds of the batch that the host knows without a look at the index tensors.
struct AttentionBounds {
  int64_t max_queries;  // of a sequence
  int64_t max_keys;
};

// Floats of scratch.
int64_t paged_attention_scratch(const PagedAttentionArgs& args, const AttentionBounds& bounds);

// Writes every row of out; tokens past cu_seqlens_q[num_seqs] and queries that see no key get
// zeros. Lengths and block ids beyond what is there are cut off and skipped.
void paged_attention(const PagedAttentionArgs& args, const AttentionBounds& bounds, float* scratch,
                     void* stream);

}  // namespace rtp_llm::cuda

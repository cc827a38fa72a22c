// SPDX-License-Identifier: Apache-2.0
// Attention over a paged KV cache, read in place through block tables: prefill, chunks and decode.
//
// Nothing is read back to the host: the grid follows from the sizes of the tensors and from two
// bounds that the caller knows, so that a call can be captured in a graph.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/attention/paged_attention.h"
#include "rtp_llm/kernels/xpu/queue.h"

namespace rtp_llm::xpu {

// Query rows (tokens x query heads of one KV head) that share one reading of keys and values.
constexpr int kAttentionRows = 8;
constexpr int kMaxHeadDim = 256;
// With few query tokens, keys are cut into parts of this size so that enough groups have work. The
// cut depends on the position of a key alone, and not on the batch.
constexpr int kKeysPerPart = 512;
constexpr int kMaxQueriesInParts = 16;

struct PartedAttentionArgs {
  PagedAttentionArgs attention;
  float* partials;  // scratch of attention_scratch_floats(), not looked at when that is 0
  int32_t num_parts;
};

// Parts that keys are cut into when no sequence has more queries or keys than that.
constexpr int32_t attention_parts(int64_t max_queries, int64_t max_keys) {
  if (max_queries > kMaxQueriesInParts || max_keys <= kKeysPerPart) return 1;
  return static_cast<int32_t>((max_keys + kKeysPerPart - 1) / kKeysPerPart);
}

// What a part leaves of a row: the largest score, the sum of weights, the weighted values.
constexpr int64_t partial_floats(int64_t head_dim) { return head_dim + 2; }

constexpr int64_t attention_scratch_floats(const PagedAttentionArgs& args, int32_t num_parts) {
  if (num_parts == 1) return 0;
  return args.num_tokens * args.num_heads * num_parts * partial_floats(args.head_dim);
}

// Writes every row of out; tokens past cu_seqlens_q[num_seqs] and queries that see no key get
// zeros. A block outside the cache counts as none.
void paged_attention(Queue& queue, const PartedAttentionArgs& args);

}  // namespace rtp_llm::xpu

// SPDX-License-Identifier: Apache-2.0
// Arguments of attention over a paged KV cache, read in place through block tables.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

// Strides are in elements; the last dimension of every tensor is contiguous.
struct PagedAttentionArgs {
  DType dtype;                  // of q, k, v and out
  const void* q;                // [num_tokens, num_heads, head_dim]
  const void* k;                // [num_blocks, block_size, num_kv_heads, head_dim]
  const void* v;                // as k
  void* out;                    // [num_tokens, num_heads, value_dim], contiguous
  const float* sinks;           // [num_heads] or null: a logit per head that carries no value
  const float* bias;            // [num_heads, 2 * bias_zero + 1] or null: added to scaled scores
  const int32_t* cu_seqlens_q;  // [num_seqs + 1]
  const int32_t* seq_lens;      // [num_seqs], keys including the query tokens' own; null: no others
  const int32_t* block_table;   // [num_seqs, table_width]; negative = no block, never read
  int64_t num_tokens, num_seqs, num_blocks, table_width;
  int64_t q_token_stride, q_head_stride;
  int64_t kv_block_stride, kv_token_stride, kv_head_stride;
  int64_t table_stride, bias_stride;
  int num_heads, num_kv_heads, head_dim, block_size;
  int value_dim;     // of v and out; other than head_dim on the CPU only
  int window;        // > 0: a key is visible when query position - key position < window
  int window_right;  // > 0: and when key position - query position < window_right; 1 is causal
  int bias_zero;     // where bias has that of the query's own position; later keys follow
  float scale;
  float soft_cap;  // > 0: scores become soft_cap * tanh(score / soft_cap)

  // How many keys sequence s has.
  constexpr int32_t keys_of(int64_t s) const {
    return seq_lens != nullptr ? seq_lens[s] : cu_seqlens_q[s + 1] - cu_seqlens_q[s];
  }

  // The bias of key 0 for a query; that of key i is i further on.
  constexpr const float* bias_of(int64_t head, int64_t query_position) const {
    return bias + head * bias_stride + bias_zero - query_position;
  }
};

}  // namespace rtp_llm

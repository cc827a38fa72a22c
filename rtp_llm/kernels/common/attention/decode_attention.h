// SPDX-License-Identifier: Apache-2.0
// Arguments of a decode step's attention in one pass: from the packed projection of one new token
// a sequence to attention's result, with the norms, the rotation and the cache write on the way.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

// Strides are in elements; heads are contiguous. Row b of everything is sequence b.
struct DecodeAttentionArgs {
  DType dtype;           // of qkv, the weights and out
  DType cache_dtype;     // dtype, or e4m3fn
  const void* qkv;       // [num_seqs, num_heads + 2 num_kv_heads, head_dim]
  void* out;             // [num_seqs, num_heads, head_dim]
  void* k_cache;         // [num_blocks, block_size, num_kv_heads, head_dim]
  void* v_cache;         // as k_cache
  const float* k_scale;  // what is stored was divided by it; null = 1
  const float* v_scale;

  const float* cos_sin;  // [num_positions, rotary_dim]: cosines, then sines; null = no rotation
  const void* q_weight;  // [head_dim] each; null = no norm
  const void* k_weight;
  const int32_t* positions;    // [num_seqs]
  const int32_t* seq_lens;     // [num_seqs] keys with the new one; 0 = no sequence
  const int32_t* slots;        // [num_seqs] where the new key goes; negative = nowhere
  const int32_t* block_table;  // [num_seqs, table_width]; negative = no block, never read

  int64_t num_seqs, num_blocks, num_positions, table_width;
  int64_t qkv_stride, table_stride;
  int64_t kv_block_stride, kv_token_stride, kv_head_stride;
  int num_heads, num_kv_heads, head_dim;
  int block_bits;  // blocks hold 2^block_bits tokens, at least 8
  int rotary_dim, rotary_offset;
  bool is_neox;  // pairs (i, i + rotary_dim / 2), otherwise (2i, 2i + 1)
  int window;    // > 0: a key is visible when query position - key position < window
  float eps, scale, soft_cap;
  float norm_offset;  // added to the weights
  bool early;         // all but qkv may be read before the kernel in front has ended

  // Keys are split over up to `splits` blocks of threads, which merge through these.
  float* parts;       // [num_seqs, num_heads, splits, head_dim], then [.., splits, 2]
  int32_t* counters;  // [num_seqs, num_kv_heads]: zero before, zero again afterwards
};

}  // namespace rtp_llm

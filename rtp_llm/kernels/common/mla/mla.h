// SPDX-License-Identifier: Apache-2.0
// Arguments of multi-head latent attention: of its cache write (the norm of the latent, rotation of
// its key and of the query heads), and of attention, which is paged attention with one KV head.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/attention/paged_attention.h"
#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

// Strides are in elements; the last dimension of every tensor is contiguous. A token's row of kv
// and its place in the cache hold latent_size, then rope_size elements.
struct MlaRotateAndStoreArgs {
  const void* q;  // [tokens, num_heads, rope_size]
  void* q_out;    // the same shape; may be q
  int64_t q_token_stride, q_head_stride;
  int64_t out_token_stride, out_head_stride;
  int64_t num_heads;

  const void* kv;
  const void* norm_weight;  // [latent_size]
  int64_t tokens;
  int64_t kv_stride;
  int64_t latent_size, rope_size;
  float eps;

  const int32_t* positions;
  const float* cos_sin;  // [num_positions, rope_size]: cosines, then sines; null = no rotation
  int64_t num_positions;
  bool is_neox;  // pairs (i, i + rope_size / 2), otherwise (2i, 2i + 1)

  void* cache;           // [blocks, block_size, latent_size + rope_size]
  const int32_t* slots;  // block * block_size + offset for each token; -1 = not stored
  int64_t num_slots;
  int64_t block_size;
  int64_t block_stride, slot_stride;

  DType dtype;
};

using MlaAttentionArgs = PagedAttentionArgs;

}  // namespace rtp_llm

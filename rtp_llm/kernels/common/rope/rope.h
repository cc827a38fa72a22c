// SPDX-License-Identifier: Apache-2.0
// Arguments of the rotary embedding of packed Q, K, V rows with the write of K and V into the paged
// cache.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

// Strides are in elements. A row of qkv: num_heads query, num_kv_heads key and as many value heads.
struct RopeKvWriteArgs {
  void* qkv;
  int64_t tokens;
  int64_t stride;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;

  const int32_t* positions;
  const float* cos_sin;  // [num_positions, rotary_dim]: cosines, then sines; null = no rotation
  int64_t num_positions;
  int64_t rotary_dim;
  int64_t rotary_offset;  // first rotated channel of a head
  bool is_neox;           // pairs (i, i + rotary_dim / 2), otherwise (2i, 2i + 1)

  void* kv_cache;        // [2, blocks, block_size, num_kv_heads, head_dim]; null = no write
  const int32_t* slots;  // block * block_size + offset for each token; -1 = not stored
  int64_t num_slots;
  int64_t block_size;
  int64_t plane_stride;  // from K to V
  int64_t block_stride;

  DType dtype;
};

}  // namespace rtp_llm

// Rotary embedding of packed Q, K, V rows, and the write of K and V into the paged cache.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm::cpu {

// Strides are in elements. A row of qkv: num_heads query, num_kv_heads key and as many value heads.
struct RopeKvWriteArgs {
  void* qkv;
  int64_t stride;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;

  const int32_t* positions;
  const float* cos_sin;  // [positions, rotary_dim]: cosines, then sines; null = no rotation
  int64_t rotary_dim;
  int64_t rotary_offset;  // first rotated channel of a head
  bool is_neox;           // pairs (i, i + rotary_dim / 2), otherwise (2i, 2i + 1)

  void* kv_cache;        // [2, blocks, block_size, num_kv_heads, head_dim]; null = no write
  const int32_t* slots;  // block * block_size + offset for each token; -1 = not stored
  int64_t block_size;
  int64_t plane_stride;  // from K to V
  int64_t block_stride;

  DType dtype;
};

RTP_LLM_FOR_EACH_ISA(
    // Tokens [begin, end). Positions and slots have been checked.
    void rope_kv_write(const RopeKvWriteArgs& args, int64_t begin, int64_t end);)

}  // namespace rtp_llm::cpu

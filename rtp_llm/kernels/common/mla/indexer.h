// SPDX-License-Identifier: Apache-2.0
// Arguments of the lightning indexer: of its cache write (norm and rotation of its key, rotation of
// its query heads), of the logits of every cached key, and of the selection of the best keys.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

// Strides are in elements; the last dimension of every tensor is contiguous. The first rope_size
// elements of a head are rotated.
struct IndexerRotateAndStoreArgs {
  void* q;  // [tokens, num_heads, head_dim], rotated in place
  int64_t q_token_stride, q_head_stride;
  int64_t num_heads;

  const void* k;  // [tokens, head_dim]
  int64_t k_stride;
  const void* norm_weight;  // [head_dim], as is norm_bias
  const void* norm_bias;
  int64_t tokens;
  int64_t head_dim, rope_size;
  float eps;

  const int32_t* positions;
  const float* cos_sin;  // [num_positions, rope_size]: cosines, then sines
  int64_t num_positions;
  bool is_neox;  // pairs (i, i + rope_size / 2), otherwise (2i, 2i + 1)

  void* cache;           // [blocks, block_size, head_dim]
  const int32_t* slots;  // block * block_size + offset for each token; -1 = not stored
  int64_t num_slots;
  int64_t block_size;
  int64_t block_stride, slot_stride;

  DType dtype;
};

// Which keys a token sees: the first `visible` ones of its sequence, found through a block table.
struct VisibleKeys {
  const int32_t* sequences;  // [tokens]; num_seqs = none
  const int32_t* visible;    // [tokens]
  const int32_t* block_table;
  int64_t table_stride, table_width;
  int64_t num_seqs;
  int64_t num_blocks;
  int64_t block_size;

  int64_t slot(int64_t token, int64_t key) const {
    return block_table[sequences[token] * table_stride + key / block_size] * block_size +
           key % block_size;
  }
};

// Keys whose logits for a token an item of the CPU's kernel computes.
constexpr int64_t kMqaLogitsTile = 128;

struct PagedMqaLogitsArgs {
  const void* q;        // [tokens, num_heads, head_dim]
  const void* weights;  // [tokens, num_heads]
  const void* cache;    // [blocks, block_size, head_dim]
  float* out;           // [tokens, width]
  VisibleKeys keys;
  int64_t tokens;
  int64_t num_heads, head_dim;
  int64_t width;
  int64_t q_token_stride, q_head_stride;
  int64_t weights_stride;
  int64_t block_stride, slot_stride;
  DType dtype;
};

struct TopKSlotsArgs {
  const float* logits;  // [tokens, width]
  VisibleKeys keys;
  int32_t* slots;   // [tokens, top_k]
  int32_t* counts;  // [tokens]
  int64_t tokens;
  int64_t width;
  int64_t top_k;
};

}  // namespace rtp_llm

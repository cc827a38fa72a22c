// SPDX-License-Identifier: Apache-2.0
// Arguments of the copy of whole blocks of a KV cache [L, P, N, S, Hk, D]: for forks of sequences.
#pragma once

#include <cstdint>

namespace rtp_llm {

struct CopyBlocksArgs {
  void* cache;
  const int32_t* pairs;  // [num_pairs, 2]: source, destination; no destination is a source
  int64_t num_layers;
  int64_t num_planes;  // of a layer: keys and values, or one of latents
  int64_t num_pairs;
  int64_t num_blocks;
  int64_t block_bytes;         // S * Hk * D elements
  int64_t block_stride_bytes;  // between blocks of one plane
  int64_t plane_stride_bytes;  // between planes of a layer
  int64_t layer_stride_bytes;
};

}  // namespace rtp_llm

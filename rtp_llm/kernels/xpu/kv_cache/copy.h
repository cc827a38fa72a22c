// SPDX-License-Identifier: Apache-2.0
// Copies that would be many calls, as one submission: rows of a table, tokens by index, blocks of a
// KV cache, rows with gaps between them, and lists of regions.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/kv_cache/copy_blocks.h"
#include "rtp_llm/kernels/common/lookup/lookup.h"
#include "rtp_llm/kernels/xpu/queue.h"

namespace rtp_llm::xpu {

// An id outside the table gives a row of NaN.
void embedding(Queue& queue, const EmbeddingArgs& args);

// An id without a valid row stays as it is.
void substitute_tokens(Queue& queue, const SubstituteTokensArgs& args);

// A pair that names a block outside the cache is left out.
void copy_blocks(Queue& queue, const CopyBlocksArgs& args);

// Rows of row_bytes each; rows without gaps on both sides are one plain copy.
struct StridedCopyArgs {
  void* to;
  const void* from;
  int64_t rows;
  int64_t row_bytes;
  int64_t to_stride_bytes;
  int64_t from_stride_bytes;
};
void strided_copy(Queue& queue, const StridedCopyArgs& args);

// Region i: bytes[i] bytes from address from[i] to address to[i]; the lists are device memory.
// Regions that are written overlap nothing else.
struct BatchedCopyArgs {
  const int64_t* to;
  const int64_t* from;
  const int64_t* bytes;
  int64_t count;
  int64_t max_bytes;  // of any region, or more
};
void batched_copy(Queue& queue, const BatchedCopyArgs& args);

// What one group of work-items copies.
constexpr int64_t kCopyChunk = 16 * 1024;

}  // namespace rtp_llm::xpu

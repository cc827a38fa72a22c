// SPDX-License-Identifier: Apache-2.0
// Operators on weights in GGUF blocks, which stay as they are in files: an item reads a block's
// columns at once, so that interleaved rows would gain nothing.
#pragma once

#include "rtp_llm/kernels/common/gguf/gguf_group.h"
#include "rtp_llm/kernels/common/gguf/gguf_linear.h"
#include "rtp_llm/kernels/xpu/gemm/weight_product.h"

namespace rtp_llm::xpu {

// Blocks of so many bytes for so many columns.
struct GgufWeight {
  const uint8_t* blocks;
  int64_t row_bytes, expert_bytes;
  int block_bytes, block_columns;
  GgufType type;
  GgufCodes codes;
};

struct GgufRowsArgs {
  GgufEmbeddingArgs embedding;
  GgufWeight weight;
};

void gguf_linear(Queue& queue, const GgufLinearArgs& args);
void gguf_grouped_linear(Queue& queue, const GgufGroupedLinearArgs& args);
void gguf_interleave(Queue& queue, const GgufInterleaveArgs& args);
// An id outside the table gives a row of NaN.
void gguf_embedding(Queue& queue, const GgufEmbeddingArgs& args);

}  // namespace rtp_llm::xpu

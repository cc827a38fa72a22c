// SPDX-License-Identifier: Apache-2.0
// Arguments of the embeddings of encoders: rows of up to three tables, added up and normalised.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

// A table of rows, and the row of each token.
struct EmbeddingTable {
  const int32_t* ids;  // null: row 0 for every token
  const void* rows;    // null: nothing to add
  int64_t count;       // of rows
  int64_t stride;      // in elements
};

struct BertEmbeddingArgs {
  EmbeddingTable words, positions, token_types;
  const void* norm_weight;  // or null: no norm
  const void* norm_bias;    // or null
  void* out;                // [tokens, size], contiguous
  int64_t tokens;
  int64_t size;
  DType dtype;
  float eps;
};

}  // namespace rtp_llm

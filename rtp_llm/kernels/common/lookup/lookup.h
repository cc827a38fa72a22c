// SPDX-License-Identifier: Apache-2.0
// Arguments of the embedding (rows of a table by index) and of the resolution of tokens.
#pragma once

#include <cstdint>

namespace rtp_llm {

struct EmbeddingArgs {
  const int32_t* ids;
  const void* table;
  void* out;  // contiguous
  int64_t count;
  int64_t table_rows;
  int64_t row_bytes;
  int64_t table_stride_bytes;
};

struct SubstituteTokensArgs {
  int32_t* ids;  // a negative one is -(row + 1)
  const int32_t* previous;
  int64_t count;
  int64_t rows;  // of previous
};

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
// Arguments of the way of tokens to the ranks of their experts, and back.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/collective/rank_buffers.h"
#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm {

constexpr int kMaxChoices = 64;  // experts of a token

// Rank r has the experts r * slots to (r + 1) * slots - 1. Row r * rows + t of the received rows
// is token t of rank r. `row_packs`: packs of 16 bytes in a row of x, which is contiguous.
struct DispatchTokensArgs {
  RankBuffers buffers;
  const void* x;         // [tokens, H]
  const int32_t* ids;    // [tokens, k]
  const float* weights;  // [tokens, k]
  void* x_there;         // [ranks * rows, H]
  int32_t* ids_there;    // [ranks * rows, k]: slots, or -1
  float* weights_there;  // [ranks * rows, k]
  int64_t tokens;        // at most rows
  int64_t rows;
  int64_t row_packs;
  int k;
  int slots;
};

struct CombineTokensArgs {
  RankBuffers buffers;
  const void* results;       // [ranks * rows, H], contiguous
  const int32_t* ids_there;  // [ranks * rows, k]
  const int32_t* ids;        // [tokens, k]
  void* out;                 // [tokens, H]
  int64_t tokens;            // at most rows
  int64_t rows;
  int64_t row_packs;
  int k;
  int slots;
  DType dtype;
};

}  // namespace rtp_llm

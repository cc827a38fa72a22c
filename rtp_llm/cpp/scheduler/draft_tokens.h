// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace rtp_llm {

// Speculative tokens for the next step: those of sequence ids[i] are the first lengths[i] entries
// of row i of `tokens` [count, width]. They follow the last token of the sequence, a pending one
// included. -1 stands for a token that the host does not know: only the device can accept it.
struct DraftTokens {
  int32_t count = 0;
  int32_t width = 0;
  const int64_t* ids = nullptr;
  const int32_t* tokens = nullptr;
  const int32_t* lengths = nullptr;
};

}  // namespace rtp_llm

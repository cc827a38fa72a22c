// SPDX-License-Identifier: Apache-2.0
// Buffers of ranks that write into each other's device memory.
#pragma once

#include <cstdint>

namespace rtp_llm {

constexpr int kMaxRanks = 8;
constexpr int kRankStateWords = 4;

// Where the ranks meet; rtp_llm/ops/collective/rank_buffers.py says more.
struct RankBuffers {
  const int64_t* addresses;  // [ranks + 1]: the buffers of all ranks, and the word that ends waits
  int32_t* state;            // [kRankStateWords], of this rank
  int64_t capacity;          // bytes of a part at most
  int ranks;
  int rank;
  int max_blocks;  // 0: no limit of the caller's
};

}  // namespace rtp_llm

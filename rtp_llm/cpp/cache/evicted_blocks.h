// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "rtp_llm/cpp/cache/block_hash.h"

namespace rtp_llm {

// Blocks that the prefix cache has forgotten, in order. They keep their content until the device
// executes the next batch that is scheduled, so whoever wants it must copy it before that batch.
struct EvictedBlocks {
  std::vector<Hash128> keys;    // of everything up to and including the block
  std::vector<int32_t> groups;  // cache group of each block
  std::vector<int32_t> blocks;  // its number in the group's pool
  std::vector<int32_t> tokens;  // [blocks, block_size]: the block's own tokens
};

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "rtp_llm/cpp/cache/cache_group.h"

namespace rtp_llm {

inline constexpr int32_t kVocabulary = 6;
inline constexpr int32_t kEos = 0;
inline constexpr int32_t kStop = 1;

// The configurations that random tests run in.
struct World {
  const char* name;
  std::vector<CacheGroup> groups;
  int32_t max_running;
  int32_t max_batch_tokens;
  bool prefix_cache;
  int32_t hash_bits;
  int32_t drafts;
  bool overlap = false;
  int32_t snapshot_interval = 0;
  bool optimistic = false;
  int32_t stages = 1;
};

inline CacheGroup Full(int32_t num_blocks, int32_t first_block = 1) {
  return {GroupKind::kFull, num_blocks, 4, 0, first_block};
}
inline CacheGroup Window(int32_t num_blocks, int32_t window, int32_t first_block = 1) {
  return {GroupKind::kSlidingWindow, num_blocks, 4, window, first_block};
}

inline CacheGroup Recurrent(int32_t num_blocks, int32_t block_size, int32_t first_block = 1) {
  return {GroupKind::kRecurrent, num_blocks, block_size, 0, first_block};
}

inline void PrintTo(const World& world, std::ostream* out) { *out << world.name; }

}  // namespace rtp_llm

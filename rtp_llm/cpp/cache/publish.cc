// SPDX-License-Identifier: Apache-2.0
// What of a sequence's blocks others may read.

#include <algorithm>

#include "rtp_llm/cpp/cache/cache_manager.h"

namespace rtp_llm {

bool CacheManager::BlocksOfNode(int32_t index, int32_t state_end, const SequenceCache& cache,
                                std::vector<int32_t>* blocks) const {
  bool any = false;
  for (int32_t group = 0; group < num_groups(); ++group) {
    const std::vector<int32_t>& table = cache.tables[group].blocks;
    int32_t& block = (*blocks)[group];
    if (!groups_[group].IsRecurrent()) {
      block = table[index];
    } else if ((index + 1) * block_size_ == state_end) {
      block = table.back();
    } else {
      block = kNullBlock;
    }
    any |= block != kNullBlock;
  }
  return any;
}

void CacheManager::PublishSlow(const int32_t* tokens, int32_t computed, int32_t state_interval,
                               int32_t oldest_state, SequenceCache* cache) {
  prefix_->Refresh(&cache->path);
  int32_t state_end = state_interval > 0 ? computed / state_interval * state_interval : 0;
  if (state_end < oldest_state) state_end = 0;
  std::vector<int32_t> blocks(groups_.size());
  // Nodes without a block are worth their place only as links to one that has.
  int32_t depth = computed / block_size_;
  while (depth > cache->path.depth && !BlocksOfNode(depth - 1, state_end, *cache, &blocks)) --depth;
  while (cache->path.depth < depth) {
    const int32_t index = cache->path.depth;
    BlocksOfNode(index, state_end, *cache, &blocks);
    if (!Offer(tokens + static_cast<size_t>(index) * block_size_, &blocks, state_end == computed,
               cache)) {
      return;
    }
  }
}

// Extends the path by a node. Where it has a block already, the sequence takes that one over, a
// state only if it is `latest`: the sequence goes on from the latest one.
bool CacheManager::Offer(const int32_t* tokens, std::vector<int32_t>* blocks, bool latest,
                         SequenceCache* cache) {
  const auto kept = [&](int32_t group) { return groups_[group].IsRecurrent() && !latest; };
  for (int32_t group = 0; group < num_groups(); ++group) {
    int32_t& block = (*blocks)[group];
    if (kept(group) && block != kNullBlock) pools_[group]->Acquire(Holder::kRequest, block);
  }
  const int32_t index = cache->path.depth;
  const bool extended = prefix_->Extend(tokens, blocks->data(), &cache->path);
  for (int32_t group = 0; group < num_groups(); ++group) {
    const int32_t block = (*blocks)[group];
    if (block == kNullBlock) continue;
    if (kept(group)) {
      pools_[group]->Release(Holder::kRequest, block);
      continue;
    }
    BlockTable& table = cache->tables[group];
    const int32_t last = static_cast<int32_t>(table.blocks.size()) - 1;
    const int32_t entry = groups_[group].IsRecurrent() ? last : index;
    if (table.blocks[entry] == block) continue;
    table.blocks[entry] = block;
    table.changed_from = std::min(table.changed_from, entry);
  }
  return extended;
}

}  // namespace rtp_llm

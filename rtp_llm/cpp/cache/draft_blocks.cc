// SPDX-License-Identifier: Apache-2.0
// Blocks for the drafts of a step, and for those that were rejected the way back.

#include <algorithm>

#include "rtp_llm/cpp/cache/cache_manager.h"

namespace rtp_llm {

bool CacheManager::Extend(int32_t end, SequenceCache* cache) {
  for (int32_t group = 0; group < num_groups(); ++group) {
    if (!MakeFree(group, MissingForDrafts(group, end, *cache))) return false;
  }
  for (int32_t group = 0; group < num_groups(); ++group) {
    Grow(group, MissingForDrafts(group, end, *cache), cache);
  }
  return true;
}

int32_t CacheManager::MissingForDrafts(int32_t group, int32_t end,
                                       const SequenceCache& cache) const {
  return groups_[group].IsRecurrent() ? 0 : MissingBlocks(group, end, cache);
}

void CacheManager::Shrink(int32_t length, SequenceCache* cache) {
  const int32_t end = (length + block_size_ - 1) / block_size_;
  for (int32_t group = 0; group < num_groups(); ++group) {
    if (groups_[group].IsRecurrent()) continue;
    BlockTable& table = cache->tables[group];
    const int32_t surplus = static_cast<int32_t>(table.blocks.size()) - end;
    if (surplus <= 0) continue;
    pools_[group]->Release(Holder::kRequest, table.blocks.data() + end, surplus);
    table.blocks.resize(end);
    table.changed_from = std::min(table.changed_from, end);
  }
}

}  // namespace rtp_llm

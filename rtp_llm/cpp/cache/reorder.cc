// SPDX-License-Identifier: Apache-2.0
// Blocks of beams whose order the device has changed.

#include <algorithm>
#include <utility>

#include "rtp_llm/cpp/cache/cache_manager.h"

namespace rtp_llm {

std::vector<int32_t> LastBlockOwners(const std::vector<int32_t>& parents) {
  const auto count = static_cast<int32_t>(parents.size());
  std::vector<bool> has_child(parents.size());
  std::vector<int32_t> owners(parents);
  std::vector<int32_t> others;  // children that are not the first one
  for (int32_t i = 0; i < count; ++i) {
    if (has_child[parents[i]]) others.push_back(i);
    has_child[parents[i]] = true;
  }
  auto next = others.begin();
  for (int32_t i = 0; i < count; ++i) {
    if (!has_child[i]) owners[*next++] = i;
  }
  return owners;
}

void CacheManager::Reorder(const std::vector<SequenceCache*>& caches,
                           const std::vector<int32_t>& parents, int32_t length) {
  const int32_t last = length / block_size_;
  // A block that has no token yet needs no copy: everybody keeps its own.
  std::vector<int32_t> owners = LastBlockOwners(parents);
  if (length % block_size_ == 0) {
    for (size_t i = 0; i < owners.size(); ++i) owners[i] = static_cast<int32_t>(i);
  }
  for (int32_t group = 0; group < num_groups(); ++group) {
    BlockPool& pool = *pools_[group];
    std::vector<std::vector<int32_t>> blocks(caches.size());  // of those that move
    std::vector<int32_t> last_blocks;
    last_blocks.reserve(caches.size());
    for (size_t i = 0; i < caches.size(); ++i) {
      last_blocks.push_back(caches[owners[i]]->tables[group].blocks[last]);
      if (parents[i] == static_cast<int32_t>(i)) continue;
      blocks[i] = caches[parents[i]]->tables[group].blocks;
      pool.Acquire(Holder::kRequest, blocks[i].data(), last);
    }
    for (size_t i = 0; i < caches.size(); ++i) {
      BlockTable& table = caches[i]->tables[group];
      if (parents[i] == static_cast<int32_t>(i)) {
        if (table.blocks[last] == last_blocks[i]) continue;
        table.changed_from = std::min(table.changed_from, last);
      } else {
        pool.Release(Holder::kRequest, table.blocks.data(), last);
        table.blocks.swap(blocks[i]);
        table.changed_from = 0;
      }
      table.blocks[last] = last_blocks[i];
    }
  }
  ReorderPaths(caches, parents);
}

void CacheManager::ReorderPaths(const std::vector<SequenceCache*>& caches,
                                const std::vector<int32_t>& parents) {
  std::vector<PrefixPath> paths(caches.size());
  for (size_t i = 0; i < caches.size(); ++i) {
    const PrefixPath& from = caches[parents[i]]->path;
    const bool moves = parents[i] != static_cast<int32_t>(i);
    if (moves && from.is_open()) paths[i] = prefix_->Copy(from);
  }
  for (size_t i = 0; i < caches.size(); ++i) {
    if (parents[i] == static_cast<int32_t>(i)) continue;
    if (caches[i]->path.is_open()) prefix_->Close(&caches[i]->path);
    caches[i]->path = std::move(paths[i]);
  }
}

}  // namespace rtp_llm

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
    std::vector<std::vector<int32_t>> blocks;
    for (size_t i = 0; i < caches.size(); ++i) {
      blocks.push_back(caches[parents[i]]->tables[group].blocks);
      blocks[i][last] = caches[owners[i]]->tables[group].blocks[last];
      if (parents[i] != static_cast<int32_t>(i)) {
        pool.Acquire(Holder::kRequest, blocks[i].data(), last);
      }
    }
    for (size_t i = 0; i < caches.size(); ++i) {
      BlockTable& table = caches[i]->tables[group];
      const bool stays = parents[i] == static_cast<int32_t>(i);
      if (!stays) pool.Release(Holder::kRequest, table.blocks.data(), last);
      table.blocks = std::move(blocks[i]);
      table.changed_from = stays ? std::min(table.changed_from, last) : 0;
    }
  }
  std::vector<PrefixPath> paths;
  for (const int32_t parent : parents) {
    const PrefixPath& from = caches[parent]->path;
    paths.push_back(from.is_open() ? prefix_->Copy(from) : PrefixPath());
  }
  for (size_t i = 0; i < caches.size(); ++i) {
    if (caches[i]->path.is_open()) prefix_->Close(&caches[i]->path);
    caches[i]->path = std::move(paths[i]);
  }
}

}  // namespace rtp_llm

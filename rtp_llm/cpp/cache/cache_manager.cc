// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache/cache_manager.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "rtp_llm/cpp/cache/errors.h"
#include "rtp_llm/cpp/cache/require.h"

namespace rtp_llm {
namespace {

// Longer than any sequence: without groups all of its tokens are in one block, which is nowhere.
constexpr int32_t kEndlessBlock = 1 << 24;

// Full and sliding-window groups have the smallest block size.
int32_t SmallestBlock(const std::vector<CacheGroup>& groups) {
  int32_t size = kEndlessBlock;
  for (const CacheGroup& group : groups) size = std::min(size, group.block_size);
  return size;
}

int32_t StateBlock(const std::vector<CacheGroup>& groups) {
  for (const CacheGroup& group : groups) {
    if (group.IsRecurrent()) return group.block_size;
  }
  return 1;
}

void CheckBlockSize(const CacheGroup& group, int32_t smallest, int32_t state,
                    const std::string& name) {
  const std::string problem = name + "block_size=" + std::to_string(group.block_size);
  if (group.IsRecurrent()) {
    Require(group.block_size == state, problem + ": all recurrent groups share one block_size");
    Require(group.block_size % smallest == 0,
            problem + " of a recurrent group must be a multiple of " + std::to_string(smallest) +
                ", that of the other groups");
  } else {
    Require(group.block_size == smallest,
            problem +
                ": all full and sliding_window groups share one block_size, and a recurrent "
                "group's is a multiple of it");
  }
}

std::vector<CacheGroup> Checked(std::vector<CacheGroup> groups) {
  const int32_t smallest = SmallestBlock(groups);
  const int32_t state = StateBlock(groups);
  for (size_t i = 0; i < groups.size(); ++i) {
    const CacheGroup& group = groups[i];
    const std::string name = "groups[" + std::to_string(i) + "]: ";
    Require(group.block_size > 0, name + "block_size must be positive");
    CheckBlockSize(group, smallest, state, name);
    Require(group.first_block >= 1,
            name + "first_block must be at least 1: block 0 is for padding");
    Require(group.num_blocks > group.first_block,
            name + "num_blocks=" + std::to_string(group.num_blocks) +
                " leaves no block after the padding block");
    Require(int64_t{group.num_blocks} * group.block_size <= std::numeric_limits<int32_t>::max(),
            name + "num_blocks * block_size must fit int32");
    if (group.kind == GroupKind::kSlidingWindow) {
      Require(group.window >= 1, name + "window must be at least 1");
    } else {
      Require(group.window == 0, name + "window is for sliding_window groups only");
    }
  }
  return groups;
}

}  // namespace

CacheManager::CacheManager(std::vector<CacheGroup> groups, bool prefix_cache, int32_t hash_bits)
    : groups_(Checked(std::move(groups))),
      block_size_(SmallestBlock(groups_)),
      state_block_size_(StateBlock(groups_)),
      has_states_(std::any_of(groups_.begin(), groups_.end(),
                              [](const CacheGroup& group) { return group.IsRecurrent(); })),
      whole_chains_(std::all_of(groups_.begin(), groups_.end(),
                                [](const CacheGroup& group) { return group.NeedsWholeChain(); })) {
  std::vector<BlockPool*> pools;
  for (const CacheGroup& group : groups_) {
    pools_.push_back(std::make_unique<BlockPool>(group.first_block, group.num_blocks));
    pools.push_back(pools_.back().get());
  }
  if (!prefix_cache || groups_.empty()) return;
  prefix_ = std::make_unique<PrefixCache>(groups_, std::move(pools), block_size_, hash_bits);
}

void CacheManager::Open(const std::string& extra_key, bool use_prefix_cache, SequenceCache* cache,
                        const PromptInputs* inputs) {
  cache->tables.resize(groups_.size());
  if (prefix_ != nullptr && use_prefix_cache) cache->path = prefix_->Open(extra_key, inputs);
}

int32_t CacheManager::Lookup(const int32_t* tokens, int32_t length, SequenceCache* cache) {
  if (!cache->path.is_open() || length == 0) return 0;
  // The last token is always computed: its logits are what the request waits for.
  prefix_->Walk(tokens, (length - 1) / block_size_, &cache->path);
  return cache->path.depth * block_size_;
}

int32_t CacheManager::Attach(SequenceCache* cache) {
  if (!cache->path.is_open()) return 0;
  prefix_->Refresh(&cache->path);
  const bool inside = prefix_->HasChildren(cache->path);
  const int32_t known = cache->path.depth * block_size_;
  std::vector<std::vector<int32_t>*> tables;
  for (BlockTable& table : cache->tables) tables.push_back(&table.blocks);
  prefix_->Attach(&cache->path, tables.data());
  const int32_t tokens = cache->path.depth * block_size_;
  for (int32_t group = 0; group < num_groups(); ++group) {
    BlockTable& table = cache->tables[group];
    table.changed_from = 0;
    if (groups_[group].IsRecurrent()) {
      if (tokens > 0) table.blocks = {table.blocks.back()};
    } else {
      table.first_live = groups_[group].FirstLiveBlock(tokens);
    }
  }
  const int32_t junction = known / state_block_size_ * state_block_size_;
  cache->junction = inside && junction > tokens ? junction : 0;
  return tokens;
}

void CacheManager::Trim(int32_t first, SequenceCache* cache) {
  for (int32_t group = 0; group < num_groups(); ++group) {
    if (groups_[group].IsRecurrent()) {
      TrimState(group, cache);
      continue;
    }
    BlockTable& table = cache->tables[group];
    const int32_t size = static_cast<int32_t>(table.blocks.size());
    const int32_t first_live = std::min(size, groups_[group].FirstLiveBlock(first));
    const int32_t dropped = first_live - table.first_live;
    if (dropped <= 0) continue;
    int32_t* blocks = table.blocks.data() + table.first_live;
    pools_[group]->Release(Holder::kRequest, blocks, dropped);
    std::fill_n(blocks, dropped, kNullBlock);
    table.changed_from = std::min(table.changed_from, table.first_live);
    table.first_live = first_live;
  }
}

// The device reads the older one no more: its next step comes after the one that did.
void CacheManager::TrimState(int32_t group, SequenceCache* cache) {
  std::vector<int32_t>& blocks = cache->tables[group].blocks;
  if (blocks.size() < 2) return;
  pools_[group]->Release(Holder::kRequest, blocks.front());
  blocks.erase(blocks.begin());
}

bool CacheManager::SharesTail(int32_t group, int32_t first, const SequenceCache& cache) const {
  if (!cache.may_share_tail || first % block_size_ == 0) return false;
  if (groups_[group].IsRecurrent()) return false;
  const int32_t block = cache.tables[group].blocks[first / block_size_];
  // The prefix cache has it if the one that it is shared with filled it.
  return pools_[group]->references(Holder::kRequest, block) > 1 ||
         pools_[group]->references(Holder::kCache, block) > 0;
}

bool CacheManager::MakeFree(int32_t group, int32_t needed) {
  if (pools_[group]->free_blocks() >= needed) return true;
  return prefix_ != nullptr && prefix_->MakeFree(group, needed);
}

bool CacheManager::HasRoomSlow(int32_t first, int32_t count, const SequenceCache& cache) const {
  if (cache.may_share_tail) return false;
  const int32_t end = first + count;
  for (int32_t group = 0; group < num_groups(); ++group) {
    if (MissingBlocks(group, end, cache) > 0) return false;
    if (groups_[group].IsRecurrent()) continue;
    if (groups_[group].FirstLiveBlock(first) > cache.tables[group].first_live) return false;
  }
  return true;
}

// A state may be overwritten if nobody else reads it, now or later.
bool CacheManager::WritesInPlace(int32_t group, const SequenceCache& cache) const {
  const std::vector<int32_t>& blocks = cache.tables[group].blocks;
  return blocks.size() == 1 && pools_[group]->IsPrivate(blocks[0]);
}

int32_t CacheManager::MissingBlocks(int32_t group, int32_t end, const SequenceCache& cache) const {
  if (groups_[group].IsRecurrent()) return WritesInPlace(group, cache) ? 0 : 1;
  const int32_t size = static_cast<int32_t>(cache.tables[group].blocks.size());
  return std::max(0, groups_[group].BlocksForTokens(end) - size);
}

bool CacheManager::ReserveSlow(int32_t first, int32_t count, SequenceCache* cache,
                               std::vector<BlockCopy>* copies) {
  Trim(first, cache);
  const int32_t end = first + count;
  for (int32_t group = 0; group < num_groups(); ++group) {
    const int32_t needed =
        MissingBlocks(group, end, *cache) + (SharesTail(group, first, *cache) ? 1 : 0);
    if (!MakeFree(group, needed)) return false;
  }
  for (int32_t group = 0; group < num_groups(); ++group) {
    if (SharesTail(group, first, *cache)) ForkTail(group, first, cache, copies);
    Grow(group, MissingBlocks(group, end, *cache), cache);
  }
  cache->may_share_tail = false;
  return true;
}

// That many are free.
void CacheManager::Grow(int32_t group, int32_t needed, SequenceCache* cache) {
  if (needed == 0) return;
  BlockTable& table = cache->tables[group];
  const int32_t size = static_cast<int32_t>(table.blocks.size());
  table.blocks.resize(size + needed, kNullBlock);
  table.changed_from = std::min(table.changed_from, size);
  if (!pools_[group]->Allocate(needed, table.blocks.data() + size)) {
    throw IntegrityError("free blocks vanished: only the scheduler's thread may allocate");
  }
}

bool CacheManager::ReserveReceived(int32_t length, SequenceCache* cache) {
  Trim(length, cache);
  const int32_t end_block = length / block_size_ + 1;
  for (int32_t group = 0; group < num_groups(); ++group) {
    if (groups_[group].IsRecurrent()) {
      if (!ReserveReceivedState(group, cache)) return false;
      continue;
    }
    BlockTable& table = cache->tables[group];
    const int32_t dead = groups_[group].FirstLiveBlock(length);
    if (static_cast<int32_t>(table.blocks.size()) < dead) table.blocks.resize(dead, kNullBlock);
    table.first_live = dead;
    table.changed_from = 0;
    const int32_t needed = end_block - static_cast<int32_t>(table.blocks.size());
    if (!MakeFree(group, needed)) return false;
    Grow(group, needed, cache);
  }
  return true;
}

// The state after the prompt comes from elsewhere, into a block that nobody else reads.
bool CacheManager::ReserveReceivedState(int32_t group, SequenceCache* cache) {
  std::vector<int32_t>& blocks = cache->tables[group].blocks;
  const int32_t size = static_cast<int32_t>(blocks.size());
  pools_[group]->Release(Holder::kRequest, blocks.data(), size);
  blocks.clear();
  int32_t block = kNullBlock;
  if (!MakeFree(group, 1) || !pools_[group]->Allocate(1, &block)) return false;
  blocks = {block};
  return true;
}

void CacheManager::ForkTail(int32_t group, int32_t first, SequenceCache* cache,
                            std::vector<BlockCopy>* copies) {
  BlockPool& pool = *pools_[group];
  BlockTable& table = cache->tables[group];
  const int32_t index = first / block_size_;
  const int32_t source = table.blocks[index];
  int32_t target = kNullBlock;
  if (!pool.Allocate(1, &target)) {
    throw IntegrityError("free blocks vanished: only the scheduler's thread may allocate");
  }
  // Pinned, the source cannot become the target of another copy of the same step.
  pool.Acquire(Holder::kPin, source);
  pool.Release(Holder::kRequest, source);
  table.blocks[index] = target;
  table.changed_from = std::min(table.changed_from, index);
  copies->push_back({group, source, target});
}

void CacheManager::ReleaseCopies(std::vector<BlockCopy>* copies) {
  for (const BlockCopy& copy : *copies) pools_[copy.group]->Release(Holder::kPin, copy.source);
  copies->clear();
}

int32_t CacheManager::FittingTokens(int32_t first, int32_t count, SequenceCache* cache) {
  Trim(first, cache);
  int64_t end = int64_t{first} + count;
  for (int32_t group = 0; group < num_groups(); ++group) {
    int64_t blocks = AvailableBlocks(group);
    if (groups_[group].IsRecurrent()) {
      if (blocks < MissingBlocks(group, first + count, *cache)) return 0;
      continue;
    }
    if (SharesTail(group, first, *cache)) --blocks;
    if (blocks < 0) return 0;
    blocks += static_cast<int64_t>(cache->tables[group].blocks.size());
    end = std::min(end, blocks * block_size_);
  }
  return static_cast<int32_t>(std::max<int64_t>(0, end - first));
}

bool CacheManager::KeepsStates(const SequenceCache& cache) const {
  for (int32_t group = 0; group < num_groups(); ++group) {
    if (groups_[group].IsRecurrent() && cache.tables[group].blocks.size() < 2) return false;
  }
  return true;
}

void CacheManager::Fork(const SequenceCache& from, int32_t length, bool in_step,
                        SequenceCache* to) {
  for (int32_t group = 0; group < num_groups(); ++group) {
    BlockTable& table = to->tables[group];
    table = from.tables[group];
    table.changed_from = 0;
    std::vector<int32_t>& blocks = table.blocks;
    if (groups_[group].IsRecurrent()) {
      blocks = {in_step ? blocks.front() : blocks.back()};
    } else {
      blocks.resize(std::min<size_t>(blocks.size(), groups_[group].BlocksForTokens(length)));
    }
    pools_[group]->Acquire(Holder::kRequest, blocks.data(), static_cast<int32_t>(blocks.size()));
  }
  if (to->path.is_open()) {
    prefix_->Close(&to->path);
    to->path = prefix_->Copy(from.path);
  }
  to->may_share_tail = true;
}

void CacheManager::Release(SequenceCache* cache) {
  for (int32_t group = 0; group < num_groups(); ++group) {
    BlockTable& table = cache->tables[group];
    pools_[group]->Release(Holder::kRequest, table.blocks.data(),
                           static_cast<int32_t>(table.blocks.size()));
    table.blocks.clear();
    table.first_live = 0;
    table.changed_from = 0;
  }
  cache->may_share_tail = false;
  cache->junction = 0;
}

bool CacheManager::Frees(int32_t group, int64_t needed,
                         const std::vector<const SequenceCache*>& caches) const {
  if (needed <= 0) return true;
  std::vector<int32_t> held;
  for (const SequenceCache* cache : caches) {
    const BlockTable& table = cache->tables[group];
    held.insert(held.end(), table.blocks.begin() + table.first_live, table.blocks.end());
  }
  return static_cast<int64_t>(held.size()) >= needed &&
         pools_[group]->CountFreed(std::move(held)) >= needed;
}

void CacheManager::Close(SequenceCache* cache) {
  Release(cache);
  if (prefix_ != nullptr) prefix_->Close(&cache->path);
}

void CacheManager::CheckTables(int32_t group, const std::vector<const SequenceCache*>& live) const {
  const BlockPool& pool = *pools_[group];
  std::vector<int32_t> holders(pool.total_blocks());
  for (const SequenceCache* cache : live) {
    const BlockTable& table = cache->tables[group];
    if (groups_[group].IsRecurrent() && table.blocks.size() > 2) {
      throw IntegrityError("a sequence holds more states than a step needs");
    }
    for (size_t i = 0; i < table.blocks.size(); ++i) {
      const int32_t block = table.blocks[i];
      if ((block == kNullBlock) != (static_cast<int32_t>(i) < table.first_live)) {
        throw IntegrityError("a block table has a hole");
      }
      if (block != kNullBlock) ++holders.at(block - pool.first_block());
    }
  }
  for (int32_t block = pool.first_block(); block < pool.end_block(); ++block) {
    const int32_t held = holders[block - pool.first_block()];
    const int32_t counted = pool.references(Holder::kRequest, block);
    if (held == counted) continue;
    throw IntegrityError("block " + std::to_string(block) + " of group " + std::to_string(group) +
                         " is in " + std::to_string(held) + " tables and counted in " +
                         std::to_string(counted));
  }
}

void CacheManager::CheckIntegrity(const std::vector<const SequenceCache*>& live) const {
  for (int32_t group = 0; group < num_groups(); ++group) {
    pools_[group]->CheckIntegrity();
    CheckTables(group, live);
  }
  if (prefix_ != nullptr) prefix_->CheckIntegrity();
}

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache/prefix_cache.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "rtp_llm/cpp/cache/errors.h"

namespace rtp_llm {
namespace {

constexpr int32_t kMaxNodes = 10'000'000;

Hash128 MaskOfBits(int32_t bits) {
  if (bits < 0 || bits > 128) throw std::invalid_argument("hash_bits must be in [0, 128]");
  const auto ones = [](int32_t count) {
    return count <= 0 ? 0 : count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
  };
  return {ones(bits), ones(bits - 64)};
}

// A node has a block of its own in each group that needs whole chains. Where there is no such
// group, nodes without a block stay as links of a chain, hence more nodes than blocks.
int32_t Capacity(const std::vector<CacheGroup>& groups) {
  int64_t capacity = kMaxNodes;
  int64_t blocks = 0;
  for (const CacheGroup& group : groups) {
    if (group.NeedsWholeChain()) capacity = std::min<int64_t>(capacity, group.num_blocks);
    blocks = std::max<int64_t>(blocks, group.num_blocks);
  }
  return static_cast<int32_t>(std::min(capacity, 4 * blocks + 64));
}

// Here all groups count in nodes: a snapshot stands for the node at whose end it was taken.
std::vector<CacheGroup> PerNode(std::vector<CacheGroup> groups, int32_t block_size) {
  for (CacheGroup& group : groups) group.block_size = block_size;
  return groups;
}

}  // namespace

PrefixCache::PrefixCache(std::vector<CacheGroup> groups, std::vector<BlockPool*> pools,
                         int32_t block_size, int32_t hash_bits)
    : groups_(PerNode(std::move(groups), block_size)),
      pools_(std::move(pools)),
      block_size_(block_size),
      whole_chains_(std::all_of(groups_.begin(), groups_.end(),
                                [](const CacheGroup& group) { return group.NeedsWholeChain(); })),
      hash_mask_(MaskOfBits(hash_bits)),
      capacity_(Capacity(groups_)),
      nodes_(capacity_),
      tokens_(static_cast<size_t>(capacity_) * block_size_),
      blocks_(capacity_ * groups_.size()),
      table_(capacity_) {
  for (const BlockPool* pool : pools_) owner_.emplace_back(pool->total_blocks(), -1);
}

PrefixPath PrefixCache::Open(const std::string& extra_key, const PromptInputs* inputs) {
  PrefixPath path;
  path.inputs = inputs;
  path.key = keys_.Acquire(extra_key);
  Restart(&path);
  return path;
}

PrefixPath PrefixCache::Copy(const PrefixPath& path) {
  if (path.is_open()) keys_.Acquire(path.key);
  return path;
}

void PrefixCache::Close(PrefixPath* path) {
  if (path->is_open()) keys_.Release(path->key);
  *path = PrefixPath();
}

void PrefixCache::Restart(PrefixPath* path) const {
  path->node = -1;
  path->generation = 0;
  path->depth = 0;
  path->verified = 0;
  path->hash = Mask(keys_.hash(path->key));
}

void PrefixCache::Refresh(PrefixPath* path) const {
  if (!IsCurrent(*path)) Restart(path);
}

bool PrefixCache::IsCurrent(const PrefixPath& path) const {
  if (path.node < 0) return true;
  const Node& node = nodes_[path.node];
  return node.used && node.generation == path.generation;
}

int32_t PrefixCache::ParentCode(const PrefixPath& path) const {
  return path.node >= 0 ? path.node : -1 - path.key;
}

Hash128 PrefixCache::Mask(const Hash128& hash) const {
  return {hash.low & hash_mask_.low, hash.high & hash_mask_.high};
}

// What else than tokens the next block of a path is made of.
std::string PrefixCache::BlockKey(const PrefixPath& path) const {
  if (path.inputs == nullptr) return {};
  const int32_t first = path.depth * block_size_;
  return path.inputs->KeyOf(first, first + block_size_);
}

Hash128 PrefixCache::ChildHash(const PrefixPath& path, const int32_t* tokens,
                               const std::string& key) const {
  const Hash128 hash = ChainHash(path.hash, tokens, BlockBytes());
  return Mask(key.empty() ? hash : ChainHash(hash, key.data(), key.size()));
}

void PrefixCache::MoveTo(int32_t node, PrefixPath* path) const {
  path->node = node;
  path->generation = nodes_[node].generation;
  path->hash = nodes_[node].hash;
  ++path->depth;
}

int32_t PrefixCache::FindChild(const Hash128& hash, const PrefixPath& path, const int32_t* tokens,
                               const std::string& key) const {
  const int32_t block_key = key.empty() ? -1 : block_keys_.Find(key);
  if (block_key < 0 && !key.empty()) return -1;  // no node has it
  return Find(hash, ParentCode(path), block_key, tokens);
}

int32_t PrefixCache::Find(const Hash128& hash, int32_t parent, int32_t block_key,
                          const int32_t* tokens) const {
  return table_.Find(hash.low, [&](int32_t node) {
    return nodes_[node].hash == hash && nodes_[node].parent == parent &&
           nodes_[node].block_key == block_key &&
           std::memcmp(&tokens_[TokenIndex(node)], tokens, BlockBytes()) == 0;
  });
}

void PrefixCache::Walk(const int32_t* tokens, int32_t max_depth, PrefixPath* path) const {
  Refresh(path);
  if (path->discards != discards_) Restart(path);
  path->discards = discards_;
  if (path->depth > max_depth) CutTo(max_depth, path);
  while (path->depth < max_depth) {
    const int32_t* block_tokens = tokens + static_cast<size_t>(path->depth) * block_size_;
    const std::string key = BlockKey(*path);
    const Hash128 hash = ChildHash(*path, block_tokens, key);
    const int32_t node = FindChild(hash, *path, block_tokens, key);
    if (node < 0) return;
    MoveTo(node, path);
  }
}

int32_t PrefixCache::ServableDepth(const PrefixPath& path) const {
  // Going up from the tail: a missing block that `depth` still needs cuts it to there.
  int32_t depth = path.depth;
  int32_t node = path.node;
  for (int32_t index = depth - 1; index >= 0; --index, node = nodes_[node].parent) {
    bool needed = false;
    for (int32_t group = 0; group < num_groups(); ++group) {
      if (groups_[group].NeedsWholeChain()) continue;  // every node has those
      if (index < groups_[group].FirstLiveBlock(depth * block_size_)) continue;
      needed = true;
      if (BlockOf(node, group) == kNullBlock) depth = index;
    }
    if (!needed) break;
  }
  return depth;
}

void PrefixCache::CutTo(int32_t depth, PrefixPath* path) const {
  int32_t node = path->node;
  for (int32_t at = path->depth; at > depth; --at) node = nodes_[node].parent;
  Restart(path);
  if (depth == 0) return;
  MoveTo(node, path);
  path->depth = depth;
}

void PrefixCache::Attach(PrefixPath* path, std::vector<int32_t>* const* tables) {
  Refresh(path);
  CutTo(ServableDepth(*path), path);
  for (int32_t group = 0; group < num_groups(); ++group) {
    std::vector<int32_t>& table = *tables[group];
    table.assign(path->depth, kNullBlock);
    const int32_t first_live = groups_[group].FirstLiveBlock(path->depth * block_size_);
    int32_t node = path->node;
    for (int32_t index = path->depth - 1; index >= first_live; --index) {
      table[index] = BlockOf(node, group);
      node = nodes_[node].parent;
    }
    pools_[group]->Acquire(Holder::kRequest, table.data(), path->depth);
  }
}

bool PrefixCache::Extend(const int32_t* tokens, int32_t* blocks, PrefixPath* path) {
  if (!IsCurrent(*path)) return false;
  const std::string key = BlockKey(*path);
  const Hash128 hash = ChildHash(*path, tokens, key);
  int32_t node = FindChild(hash, *path, tokens, key);
  if (node < 0) node = Create(hash, *path, tokens, key);
  if (node < 0) {
    // A chain of links that ends here would serve nothing.
    if (IsCurrent(*path) && path->node >= 0 && ServesNothing(path->node)) Remove(path->node);
    return false;
  }
  Offer(node, blocks);
  MoveTo(node, path);
  return true;
}

int32_t PrefixCache::TakeNode() {
  if (free_nodes_.empty() && nodes_touched_ == capacity_) {
    for (int32_t group = 0; group < num_groups() && free_nodes_.empty(); ++group) {
      MakeFree(group, pools_[group]->free_blocks() + 1);
    }
  }
  if (!free_nodes_.empty()) {
    const int32_t node = free_nodes_.back();
    free_nodes_.pop_back();
    return node;
  }
  return nodes_touched_ < capacity_ ? nodes_touched_++ : -1;
}

int32_t PrefixCache::Create(const Hash128& hash, const PrefixPath& parent, const int32_t* tokens,
                            const std::string& key) {
  const int32_t index = TakeNode();
  if (index < 0) return -1;
  if (!IsCurrent(parent)) {  // evicted to make room for its own child
    free_nodes_.push_back(index);
    return -1;
  }
  Node& node = nodes_[index];
  const int32_t block_key = key.empty() ? -1 : block_keys_.Acquire(key);
  node = Node{hash, ParentCode(parent), block_key, 0, node.generation, true, true, false};
  std::memcpy(&tokens_[TokenIndex(index)], tokens, BlockBytes());
  for (int32_t group = 0; group < num_groups(); ++group) BlockOf(index, group) = kNullBlock;
  if (parent.node >= 0) {
    ++nodes_[parent.node].children;
  } else {
    keys_.Acquire(parent.key);
  }
  table_.Insert(hash.low, index);
  ++num_nodes_;
  return index;
}

void PrefixCache::Offer(int32_t node, int32_t* blocks) {
  for (int32_t group = 0; group < num_groups(); ++group) {
    int32_t& cached = BlockOf(node, group);
    BlockPool& pool = *pools_[group];
    if (blocks[group] == kNullBlock || blocks[group] == cached) continue;
    if (cached == kNullBlock) {
      cached = blocks[group];
      owner_[group][cached - pool.first_block()] = node;
      pool.Acquire(Holder::kCache, cached);
    } else {
      // Both hold the same tokens after the same prefix. Sharing one keeps the rule that whoever
      // holds a node's block holds its ancestors' too, so that no idle block has a held descendant.
      pool.Acquire(Holder::kRequest, cached);
      pool.Release(Holder::kRequest, blocks[group]);
      blocks[group] = cached;
    }
  }
}

bool PrefixCache::MakeFree(int32_t group, int32_t needed) {
  BlockPool& pool = *pools_[group];
  int32_t may_skip = pool.idle_blocks();
  while (pool.free_blocks() < needed) {
    const int32_t block = pool.OldestIdle();
    if (block == kNullBlock) return false;
    const int32_t node = owner_[group][block - pool.first_block()];
    if (!groups_[group].NeedsWholeChain()) {
      DropBlock(node, group);
      if (ServesNothing(node)) Remove(node);
    } else if (nodes_[node].children == 0) {
      Remove(node);
    } else if (may_skip-- > 0) {
      pool.Refresh(
          block);  // not a leaf: a transfer pins a descendant, or let it go before this one
    } else {
      return false;
    }
  }
  return true;
}

void PrefixCache::DropBlock(int32_t node, int32_t group) {
  int32_t& block = BlockOf(node, group);
  if (block == kNullBlock) return;
  if (evicted_ != nullptr) RecordEviction(node, group);
  owner_[group][block - pools_[group]->first_block()] = -1;
  pools_[group]->Release(Holder::kCache, block);
  block = kNullBlock;
}

// A node that is not listed, or that was never verified where all groups can be, may hold NaN.
void PrefixCache::RecordEviction(int32_t node, int32_t group) {
  const Node& entry = nodes_[node];
  if (!entry.listed || (whole_chains_ && !entry.verified)) return;
  const int32_t* tokens = &tokens_[TokenIndex(node)];
  evicted_->keys.push_back(entry.hash);
  evicted_->groups.push_back(group);
  evicted_->blocks.push_back(BlockOf(node, group));
  evicted_->tokens.insert(evicted_->tokens.end(), tokens, tokens + block_size_);
}

std::vector<Hash128> PrefixCache::Keys(const PrefixPath& path, const int32_t* tokens,
                                       int32_t blocks) const {
  std::vector<Hash128> keys;
  PrefixPath at = path;
  Restart(&at);
  for (int32_t block = 0; block < blocks; ++block) {
    const int32_t* block_tokens = tokens + static_cast<size_t>(block) * block_size_;
    at.hash = ChildHash(at, block_tokens, BlockKey(at));
    ++at.depth;
    keys.push_back(at.hash);
  }
  return keys;
}

bool PrefixCache::ServesNothing(int32_t node) const {
  if (nodes_[node].children > 0) return false;
  for (int32_t group = 0; group < num_groups(); ++group) {
    if (BlockOf(node, group) != kNullBlock) return false;
  }
  return true;
}

void PrefixCache::Remove(int32_t node) {
  // The node, and every ancestor that was only a link to it.
  while (true) {
    for (int32_t group = 0; group < num_groups(); ++group) DropBlock(node, group);
    const int32_t parent = nodes_[node].parent;
    Unlist(node);
    if (nodes_[node].block_key >= 0) block_keys_.Release(nodes_[node].block_key);
    nodes_[node].used = false;
    ++nodes_[node].generation;
    free_nodes_.push_back(node);
    --num_nodes_;
    if (parent < 0) {
      keys_.Release(-1 - parent);
      return;
    }
    --nodes_[parent].children;
    if (!ServesNothing(parent)) return;
    node = parent;
  }
}

void PrefixCache::CheckNode(int32_t node) const {
  const Node& entry = nodes_[node];
  const std::string name = "prefix node " + std::to_string(node);
  const int32_t* tokens = &tokens_[TokenIndex(node)];
  if (entry.listed && Find(entry.hash, entry.parent, entry.block_key, tokens) != node) {
    throw IntegrityError(name + " is not found by its content");
  }
  if (entry.parent >= 0 && !nodes_[entry.parent].used) throw IntegrityError(name + " is an orphan");
  if (ServesNothing(node)) throw IntegrityError(name + " serves nothing");
  for (int32_t group = 0; group < num_groups(); ++group) {
    const int32_t block = BlockOf(node, group);
    if (block == kNullBlock) {
      if (groups_[group].NeedsWholeChain()) throw IntegrityError(name + " lost its block");
    } else if (owner_[group][block - pools_[group]->first_block()] != node ||
               pools_[group]->references(Holder::kCache, block) != 1) {
      throw IntegrityError(name + " shares its block with another node");
    }
  }
}

void PrefixCache::CheckIntegrity() const {
  std::vector<int32_t> children(nodes_touched_);
  std::vector<int32_t> cached(groups_.size());
  int32_t used = 0;
  for (int32_t node = 0; node < nodes_touched_; ++node) {
    if (!nodes_[node].used) continue;
    ++used;
    CheckNode(node);
    if (nodes_[node].parent >= 0) ++children[nodes_[node].parent];
    for (int32_t g = 0; g < num_groups(); ++g) cached[g] += BlockOf(node, g) != kNullBlock;
  }
  if (used != num_nodes_) throw IntegrityError("the prefix cache lost nodes");
  for (int32_t node = 0; node < nodes_touched_; ++node) {
    if (nodes_[node].used && nodes_[node].children != children[node]) {
      throw IntegrityError("prefix node " + std::to_string(node) + " miscounts its children");
    }
  }
  for (int32_t group = 0; group < num_groups(); ++group) {
    if (cached[group] != pools_[group]->cached_blocks()) {
      throw IntegrityError("cached blocks without a prefix node in group " + std::to_string(group));
    }
  }
}

}  // namespace rtp_llm

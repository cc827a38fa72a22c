// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rtp_llm/cpp/cache/block_hash.h"
#include "rtp_llm/cpp/cache/block_pool.h"
#include "rtp_llm/cpp/cache/cache_group.h"
#include "rtp_llm/cpp/cache/evicted_blocks.h"
#include "rtp_llm/cpp/cache/extra_keys.h"
#include "rtp_llm/cpp/cache/host_array.h"
#include "rtp_llm/cpp/cache/node_table.h"
#include "rtp_llm/cpp/cache/prompt_inputs.h"

namespace rtp_llm {

// A place in the prefix tree: `depth` full blocks of some token sequence under one extra key.
struct PrefixPath {
  int32_t key = -1;   // number of the extra key; -1: not open
  int32_t node = -1;  // -1: nothing matched yet
  uint32_t generation = 0;
  int32_t depth = 0;
  int32_t verified = 0;   // the depth up to which Verify() was called
  uint32_t discards = 0;  // of the cache when this was last walked
  Hash128 hash;
  const PromptInputs* inputs = nullptr;  // of its prompt, which outlives it; null: token ids alone

  bool is_open() const { return key >= 0; }
};

// A tree of full blocks of tokens; each node knows the cache block that holds them, per group.
//
// A node is found by the 128-bit chained hash of everything up to it, and is a hit only if its
// tokens, what else its prompt is made of there (PromptInputs::KeyOf), its parent (the node itself,
// not its hash) and, at the first level, the extra key are equal: a collision costs time, never
// another prompt's cache. A recurrent group's snapshot belongs
// to the node at whose end it was taken; most nodes have none. Every block of a node carries one
// kCache reference. When blocks run short the least recently used idle one goes, leaves first in
// groups that need whole chains.
//
// Not thread safe: it belongs to the scheduler's thread. The pools it works on are.
class PrefixCache {
 public:
  // `pools[g]` are the blocks of `groups[g]`, a node has `block_size` tokens. `hash_bits` below 128
  // forces collisions, for tests.
  PrefixCache(std::vector<CacheGroup> groups, std::vector<BlockPool*> pools, int32_t block_size,
              int32_t hash_bits);

  // Every path that was opened or copied must be closed, which resets it.
  PrefixPath Open(const std::string& extra_key, const PromptInputs* inputs = nullptr);
  PrefixPath Copy(const PrefixPath& path);
  void Close(PrefixPath* path);

  // Sends a path back to its start if its node was evicted meanwhile.
  void Refresh(PrefixPath* path) const;

  // Moves the path down along `tokens` for as long as nodes exist, to at most `max_depth`.
  void Walk(const int32_t* tokens, int32_t max_depth, PrefixPath* path) const;

  // Whether longer prefixes than this one are known.
  bool HasChildren(const PrefixPath& path) const {
    return path.node >= 0 && nodes_[path.node].children > 0;
  }

  // Cuts the path to the longest prefix that every group can serve, and takes a kRequest reference
  // on its live blocks. `tables[g]` receives `depth` entries, kNullBlock where the group keeps
  // nothing.
  void Attach(PrefixPath* path, std::vector<int32_t>* const* tables);

  // Moves the path down by one block of tokens, adding a node if there is none. `blocks[g]` holds
  // the caller's block (or kNullBlock); where the node has one already, the caller's reference
  // moves to that block and `blocks[g]` changes. False if the path is not current or the tree is
  // full.
  bool Extend(const int32_t* tokens, int32_t* blocks, PrefixPath* path);

  // The path's blocks led to finite logits, so no key or value in them is NaN: a query reads every
  // one of them, and NaN propagates. This says nothing about keys outside a window.
  void Verify(PrefixPath* path) {
    if (path->depth > path->verified) VerifySlow(path);
  }
  // The path's blocks led to NaN. Nodes that were never verified are no longer found; the others
  // have to be verified again, and are dropped as well if they lead to NaN before that. Live
  // sequences keep the blocks that they hold, but do not publish them.
  void Discard(const PrefixPath& path);

  // Evicts until `needed` blocks of the group are free; false if that cannot be had.
  bool MakeFree(int32_t group, int32_t needed);

  // From now on evicted blocks are appended to `evicted`, except those that may hold NaN.
  void RecordEvictions(EvictedBlocks* evicted) { evicted_ = evicted; }

  // Keys of the first `blocks` blocks of `tokens` under the path's extra key and inputs.
  std::vector<Hash128> Keys(const PrefixPath& path, const int32_t* tokens, int32_t blocks) const;

  int32_t num_nodes() const { return num_nodes_; }
  int32_t num_keys() const { return keys_.size(); }
  int32_t num_block_keys() const { return block_keys_.size(); }

  // Throws IntegrityError unless tree, table and pools agree.
  void CheckIntegrity() const;

 private:
  struct Node {
    Hash128 hash;
    int32_t parent;     // node, or -1 - key at the first level
    int32_t block_key;  // number of what else its tokens are made of; -1: nothing
    int32_t children;
    uint32_t generation;  // changes when the node is removed, so that old paths are recognised
    bool used;
    bool listed;    // in the table; what is below a node that is not cannot be reached
    bool verified;  // as Verify() says
  };

  bool IsCurrent(const PrefixPath& path) const;
  void Restart(PrefixPath* path) const;
  void MoveTo(int32_t node, PrefixPath* path) const;
  void CutTo(int32_t depth, PrefixPath* path) const;
  int32_t ServableDepth(const PrefixPath& path) const;
  int32_t ParentCode(const PrefixPath& path) const;
  std::string BlockKey(const PrefixPath& path) const;
  Hash128 ChildHash(const PrefixPath& path, const int32_t* tokens, const std::string& key) const;
  Hash128 Mask(const Hash128& hash) const;
  int32_t FindChild(const Hash128& hash, const PrefixPath& path, const int32_t* tokens,
                    const std::string& key) const;
  int32_t Find(const Hash128& hash, int32_t parent, int32_t block_key, const int32_t* tokens) const;
  int32_t Create(const Hash128& hash, const PrefixPath& parent, const int32_t* tokens,
                 const std::string& key);
  int32_t TakeNode();
  void Offer(int32_t node, int32_t* blocks);
  void DropBlock(int32_t node, int32_t group);
  void RecordEviction(int32_t node, int32_t group);
  void VerifySlow(PrefixPath* path);
  void Unlist(int32_t node);
  void Remove(int32_t node);
  bool ServesNothing(int32_t node) const;
  void CheckNode(int32_t node) const;

  int32_t& BlockOf(int32_t node, int32_t group) { return blocks_[BlockIndex(node, group)]; }
  int32_t BlockOf(int32_t node, int32_t group) const { return blocks_[BlockIndex(node, group)]; }
  size_t BlockIndex(int32_t node, int32_t group) const {
    return static_cast<size_t>(node) * groups_.size() + group;
  }
  size_t TokenIndex(int32_t node) const { return static_cast<size_t>(node) * block_size_; }
  size_t BlockBytes() const { return sizeof(int32_t) * block_size_; }
  int32_t num_groups() const { return static_cast<int32_t>(groups_.size()); }

  const std::vector<CacheGroup> groups_;
  const std::vector<BlockPool*> pools_;
  const int32_t block_size_;
  const bool whole_chains_;  // in all groups
  const Hash128 hash_mask_;
  const int32_t capacity_;

  HostArray<Node> nodes_;
  HostArray<int32_t> tokens_;  // [capacity, block_size]
  HostArray<int32_t> blocks_;  // [capacity, groups]
  NodeTable table_;
  ExtraKeys keys_;                           // referenced by open paths and first-level nodes
  ExtraKeys block_keys_;                     // referenced by nodes
  std::vector<std::vector<int32_t>> owner_;  // [group][block - first_block] -> node
  std::vector<int32_t> free_nodes_;
  int32_t nodes_touched_ = 0;
  int32_t num_nodes_ = 0;
  uint32_t discards_ = 0;
  EvictedBlocks* evicted_ = nullptr;  // null: nobody asks
};

}  // namespace rtp_llm

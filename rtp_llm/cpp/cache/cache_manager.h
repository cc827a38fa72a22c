// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rtp_llm/cpp/cache/block_pool.h"
#include "rtp_llm/cpp/cache/cache_group.h"
#include "rtp_llm/cpp/cache/prefix_cache.h"

namespace rtp_llm {

// One sequence's blocks in one group: entry i holds tokens [i * block_size, (i + 1) * block_size).
// In a recurrent group the last entry holds the state after the step that was reserved last, and if
// there are two, the first one the state before it. It stays until the next step is reserved,
// because the device still reads it.
struct BlockTable {
  std::vector<int32_t> blocks;
  int32_t first_live = 0;    // entries before it are kNullBlock
  int32_t changed_from = 0;  // lowest entry that changed since whoever copies the table reset this
};

// All that a sequence holds of the caches. Made by Open, emptied by Release.
struct SequenceCache {
  std::vector<BlockTable> tables;  // per group
  PrefixPath path;              // the full blocks that are in the prefix cache; closed = not used
  bool may_share_tail = false;  // a fork may share the block that is written next
  // Recurrent groups: a snapshot here (in tokens) would have served this prompt, and is likely to
  // serve others, since it is where prompts part; 0: none.
  int32_t junction = 0;
};

// Before the next forward, `source` must be copied to `target` in all layers of `group`. The source
// is pinned until ReleaseCopies.
struct BlockCopy {
  int32_t group;
  int32_t source;
  int32_t target;
};

// Of beams that go on from `parents`, each with a last block: whose last block each one gets. The
// first child of a parent keeps the parent's; the n-th of the other children gets that of the n-th
// beam without a child, into which its parent's is to be copied. The device does the same.
std::vector<int32_t> LastBlockOwners(const std::vector<int32_t>& parents);

// Block pools, tables and the prefix cache of all groups; without groups, sequences hold nothing.
// Only one thread (the scheduler's) calls it; transfer threads may pin blocks through pool().
class CacheManager {
 public:
  // Throws std::invalid_argument for groups that cannot work.
  CacheManager(std::vector<CacheGroup> groups, bool prefix_cache, int32_t hash_bits);

  // `inputs` of its prompt outlive the cache; null: it has token ids alone.
  void Open(const std::string& extra_key, bool use_prefix_cache, SequenceCache* cache,
            const PromptInputs* inputs = nullptr);

  // How many of the first `length - 1` tokens may be served, at most. Takes nothing.
  int32_t Lookup(const int32_t* tokens, int32_t length, SequenceCache* cache);
  // Takes what Lookup found and all groups can serve; returns how many tokens that is.
  int32_t Attach(SequenceCache* cache);

  // Gives tokens [first, first + count) a block to be written to in every group, freeing what fell
  // out of windows and forking a shared tail block (its copy is appended to `copies`; a state needs
  // none, it is read in one block and written in another). False, with nothing taken, if there are
  // not enough blocks.
  bool Reserve(int32_t first, int32_t count, SequenceCache* cache, std::vector<BlockCopy>* copies) {
    return HasRoom(first, count, *cache) || ReserveSlow(first, count, cache, copies);
  }
  // Gives the first `length` tokens and the one after them their blocks, as far as those that read
  // from `length` on need them: what they hold comes from elsewhere. False, with the cache to be
  // released, if there are not enough blocks.
  bool ReserveReceived(int32_t length, SequenceCache* cache);
  // How many of `count` tokens could be reserved now.
  int32_t FittingTokens(int32_t first, int32_t count, SequenceCache* cache);
  void ReleaseCopies(std::vector<BlockCopy>* copies);
  // Gives more tokens of the step that Reserve was called for their blocks, up to token `end`. It
  // has its states already. False, with nothing taken, if there are not enough blocks.
  bool Extend(int32_t end, SequenceCache* cache);
  // Gives back the blocks after the first `length` tokens.
  void Shrink(int32_t length, SequenceCache* cache);

  // Makes the full blocks among the first `computed` tokens available to others, the state after
  // them too if `computed` is a multiple of `state_interval` tokens (0: never).
  void Publish(const int32_t* tokens, int32_t computed, int32_t state_interval,
               SequenceCache* cache) {
    PublishAccepted(tokens, computed, state_interval, computed, cache);
  }
  // The same for the states after `oldest_state` to `computed` tokens, which a step with drafts
  // leaves in one block.
  void PublishAccepted(const int32_t* tokens, int32_t computed, int32_t state_interval,
                       int32_t oldest_state, SequenceCache* cache) {
    if (cache->path.is_open() && computed >= (cache->path.depth + 1) * block_size_) {
      PublishSlow(tokens, computed, state_interval, oldest_state, cache);
    }
  }

  // The cached blocks led to finite logits, or to NaN; see PrefixCache.
  void Verify(SequenceCache* cache) {
    if (cache->path.is_open()) prefix_->Verify(&cache->path);
  }
  void Discard(const SequenceCache& cache) {
    if (cache.path.is_open()) prefix_->Discard(cache.path);
  }

  // See PrefixCache; without one nothing is recorded, and there are no keys.
  void RecordEvictions(EvictedBlocks* evicted) {
    if (prefix_ != nullptr) prefix_->RecordEvictions(evicted);
  }
  std::vector<Hash128> Keys(const SequenceCache& cache, const int32_t* tokens,
                            int32_t blocks) const {
    if (!cache.path.is_open()) return {};
    return prefix_->Keys(cache.path, tokens, blocks);
  }

  // `to` (open, empty) shares what `from` holds of the first `length` tokens, and the state after
  // them: the newest one or, `in_step`, the one before the step that was reserved last.
  void Fork(const SequenceCache& from, int32_t length, bool in_step, SequenceCache* to);
  // Each of `caches` goes on from caches[parents[i]], after `length` tokens and with a block for
  // the next one that nobody else has: see LastBlockOwners. There are no recurrent groups.
  void Reorder(const std::vector<SequenceCache*>& caches, const std::vector<int32_t>& parents,
               int32_t length);
  // Whether the states before the step that was reserved last outlive it.
  bool KeepsStates(const SequenceCache& cache) const;
  // Gives everything back; the cache can be used again as after Open.
  void Release(SequenceCache* cache);
  // Release, and the end of its use of the prefix cache.
  void Close(SequenceCache* cache);

  // Blocks that a sequence needs in a group to grow to `length` tokens in chunks of `chunk`.
  int32_t BlocksNeeded(int32_t group, int32_t length, int32_t chunk) const {
    return groups_[group].BlocksForChunk(length, chunk);
  }
  int32_t AvailableBlocks(int32_t group) const { return pools_[group]->available_blocks(); }

  // Whether `needed` more blocks of a group become available when all of `caches` are released.
  // What others hold of them stays where it is.
  bool Frees(int32_t group, int64_t needed, const std::vector<const SequenceCache*>& caches) const;

  // Every group needs all blocks of a prefix, so that any number of them is worth something.
  bool whole_chains() const { return whole_chains_; }

  int32_t num_groups() const { return static_cast<int32_t>(groups_.size()); }
  int32_t block_size() const { return block_size_; }
  // The recurrent groups' block size: prompts are cut into chunks that end at its multiples. 1: no
  // restriction.
  int32_t state_block_size() const { return state_block_size_; }
  const CacheGroup& group(int32_t index) const { return groups_[index]; }
  BlockPool& pool(int32_t group) { return *pools_[group]; }
  const BlockPool& pool(int32_t group) const { return *pools_[group]; }
  const PrefixCache* prefix_cache() const { return prefix_.get(); }

  // `live` are the caches of all sequences. Throws IntegrityError if any block is lost or is held
  // by more or fewer tables than its count says.
  void CheckIntegrity(const std::vector<const SequenceCache*>& live) const;

 private:
  bool HasRoom(int32_t first, int32_t count, const SequenceCache& cache) const;
  bool HasRoomSlow(int32_t first, int32_t count, const SequenceCache& cache) const;
  bool ReserveSlow(int32_t first, int32_t count, SequenceCache* cache,
                   std::vector<BlockCopy>* copies);
  void Trim(int32_t first, SequenceCache* cache);
  void TrimState(int32_t group, SequenceCache* cache);
  bool WritesInPlace(int32_t group, const SequenceCache& cache) const;
  int32_t MissingBlocks(int32_t group, int32_t end, const SequenceCache& cache) const;
  bool ReserveReceivedState(int32_t group, SequenceCache* cache);
  bool SharesTail(int32_t group, int32_t first, const SequenceCache& cache) const;
  void Grow(int32_t group, int32_t needed, SequenceCache* cache);
  int32_t MissingForDrafts(int32_t group, int32_t end, const SequenceCache& cache) const;
  void ForkTail(int32_t group, int32_t first, SequenceCache* cache, std::vector<BlockCopy>* copies);
  void PublishSlow(const int32_t* tokens, int32_t computed, int32_t state_interval,
                   int32_t oldest_state, SequenceCache* cache);
  // What a sequence can offer to the prefix cache's node number `index`, per group; false: nothing.
  bool BlocksOfNode(int32_t index, int32_t state_end, const SequenceCache& cache,
                    std::vector<int32_t>* blocks) const;
  bool Offer(const int32_t* tokens, std::vector<int32_t>* blocks, bool latest,
             SequenceCache* cache);
  void ReorderPaths(const std::vector<SequenceCache*>& caches, const std::vector<int32_t>& parents);
  bool MakeFree(int32_t group, int32_t needed);
  void CheckTables(int32_t group, const std::vector<const SequenceCache*>& live) const;

  const std::vector<CacheGroup> groups_;
  const int32_t block_size_;
  const int32_t state_block_size_;
  const bool has_states_;  // there are recurrent groups
  const bool whole_chains_;
  std::vector<std::unique_ptr<BlockPool>> pools_;
  std::unique_ptr<PrefixCache> prefix_;
};

inline bool CacheManager::HasRoom(int32_t first, int32_t count, const SequenceCache& cache) const {
  if (cache.may_share_tail || has_states_) return HasRoomSlow(first, count, cache);
  const int32_t last_block = (first + count - 1) / block_size_;
  for (size_t group = 0; group < groups_.size(); ++group) {
    const BlockTable& table = cache.tables[group];
    if (last_block >= static_cast<int32_t>(table.blocks.size())) return false;
    if (groups_[group].FirstLiveBlock(first) > table.first_live) return false;
  }
  return true;
}

}  // namespace rtp_llm

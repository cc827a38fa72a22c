// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

namespace rtp_llm {

constexpr int32_t kNullBlock = -1;    // table entry without a block: never read
constexpr int32_t kPaddingBlock = 0;  // row 0 of every cache: padding reads and writes go there

// Who keeps a block. The three counts are independent; a block is free when all are zero.
enum class Holder {
  kRequest,  // a sequence has it in its table
  kCache,    // the prefix cache can serve it
  kPin,      // anything else: a copy or a transfer in flight
};

// Reference-counted ids of one group's cache blocks, [first_block, end_block). Thread safe:
// transfer threads pin and unpin while the scheduler allocates.
//
// A block that only the prefix cache holds is idle. Idle blocks are kept in the order in which they
// became idle, so that the least recently used one is found without a search.
class BlockPool {
 public:
  // Block 0 is the padding block of every group, so first_block is at least 1.
  BlockPool(int32_t first_block, int32_t end_block);

  // Takes `count` free blocks, each with one kRequest reference. All or nothing.
  bool Allocate(int32_t count, int32_t* blocks);

  // Adds or drops one reference on each block; kNullBlock entries are skipped. Releasing runs from
  // the last to the first, so that the tail of a prefix becomes idle (and is evicted) before its
  // head. Throws IntegrityError when a reference is taken on a free block or was not held.
  void Acquire(Holder holder, const int32_t* blocks, int32_t count);
  void Release(Holder holder, const int32_t* blocks, int32_t count);
  void Acquire(Holder holder, int32_t block) { Acquire(holder, &block, 1); }
  void Release(Holder holder, int32_t block) { Release(holder, &block, 1); }

  // The block that has been idle for the longest, or kNullBlock.
  int32_t OldestIdle() const;
  // Makes an idle block the most recently used one.
  void Refresh(int32_t block);

  int32_t references(Holder holder, int32_t block) const;
  // Whether exactly one request holds it and nothing else does, so that it may be written.
  bool IsPrivate(int32_t block) const;
  // How many blocks become available, free or idle, when requests drop these references: a block
  // appears once for each of them.
  int32_t CountFreed(std::vector<int32_t> references) const;
  int32_t free_blocks() const;
  int32_t idle_blocks() const;
  // What requests can get: free blocks and those that eviction would free.
  int32_t available_blocks() const;
  int32_t cached_blocks() const;
  int32_t total_blocks() const { return end_block_ - first_block_; }
  int32_t first_block() const { return first_block_; }
  int32_t end_block() const { return end_block_; }

  // Throws IntegrityError unless every block is exactly one of free, idle or held.
  void CheckIntegrity() const;

 private:
  static constexpr int32_t kEnd = 0;  // the list's anchor: block 0 is never in a list

  struct Entry {
    std::array<int32_t, 3> references{};
    int32_t previous = kEnd;
    int32_t next = kEnd;
    bool idle = false;

    bool IsFree() const { return references[0] == 0 && references[1] == 0 && references[2] == 0; }
    bool IsPrivate() const {
      return references[0] == 1 && references[1] == 0 && references[2] == 0;
    }
    bool ShouldIdle() const {
      return references[0] == 0 && references[1] > 0 && references[2] == 0;
    }
  };

  Entry& At(int32_t block);
  const Entry& At(int32_t block) const;
  void AcquireLocked(Holder holder, int32_t block);
  void ReleaseLocked(Holder holder, int32_t block);
  void Link(int32_t block, Entry* entry);
  void Unlink(Entry* entry);

  const int32_t first_block_;
  const int32_t end_block_;
  mutable std::mutex mutex_;
  std::vector<Entry>
      entries_;  // entries_[0] anchors the idle list, block b is entries_[b - first + 1]
  std::vector<int32_t> free_;
  int32_t num_idle_ = 0;
  int32_t num_cached_ = 0;
};

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache/block_pool.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "rtp_llm/cpp/cache/errors.h"

namespace rtp_llm {
namespace {

constexpr const char* kHolderNames[] = {"request", "cache", "pin"};

size_t Index(Holder holder) { return static_cast<size_t>(holder); }

}  // namespace

BlockPool::BlockPool(int32_t first_block, int32_t end_block)
    : first_block_(first_block), end_block_(end_block) {
  if (first_block < 1 || end_block <= first_block) {
    throw std::invalid_argument("block pool [" + std::to_string(first_block) + ", " +
                                std::to_string(end_block) +
                                "): needs at least one block, and block 0 is the padding block");
  }
  entries_.resize(total_blocks() + 1);
  free_.reserve(total_blocks());
  for (int32_t block = end_block; block-- > first_block;) free_.push_back(block);
}

BlockPool::Entry& BlockPool::At(int32_t block) {
  return const_cast<Entry&>(static_cast<const BlockPool*>(this)->At(block));
}

const BlockPool::Entry& BlockPool::At(int32_t block) const {
  if (block < first_block_ || block >= end_block_) {
    throw IntegrityError("block " + std::to_string(block) + " is not of this pool");
  }
  return entries_[block - first_block_ + 1];
}

bool BlockPool::Allocate(int32_t count, int32_t* blocks) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (count > static_cast<int32_t>(free_.size())) return false;
  for (int32_t i = 0; i < count; ++i) {
    blocks[i] = free_.back();
    free_.pop_back();
    At(blocks[i]).references[Index(Holder::kRequest)] = 1;
  }
  return true;
}

void BlockPool::Acquire(Holder holder, const int32_t* blocks, int32_t count) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (int32_t i = 0; i < count; ++i) {
    if (blocks[i] != kNullBlock) AcquireLocked(holder, blocks[i]);
  }
}

void BlockPool::Release(Holder holder, const int32_t* blocks, int32_t count) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (int32_t i = count; i-- > 0;) {
    if (blocks[i] != kNullBlock) ReleaseLocked(holder, blocks[i]);
  }
}

void BlockPool::AcquireLocked(Holder holder, int32_t block) {
  Entry& entry = At(block);
  if (entry.IsFree()) {
    throw IntegrityError("block " + std::to_string(block) + " is free and was referenced");
  }
  if (++entry.references[Index(holder)] == 1 && holder == Holder::kCache) ++num_cached_;
  if (entry.idle && !entry.ShouldIdle()) Unlink(&entry);
}

void BlockPool::ReleaseLocked(Holder holder, int32_t block) {
  Entry& entry = At(block);
  int32_t& references = entry.references[Index(holder)];
  if (references == 0) {
    throw IntegrityError("block " + std::to_string(block) + ": no " + kHolderNames[Index(holder)] +
                         " reference to release");
  }
  if (--references == 0 && holder == Holder::kCache) --num_cached_;
  if (entry.idle && !entry.ShouldIdle()) Unlink(&entry);
  if (entry.IsFree()) {
    free_.push_back(block);
  } else if (!entry.idle && entry.ShouldIdle()) {
    Link(block, &entry);
  }
}

void BlockPool::Link(int32_t block, Entry* entry) {
  // Links are positions in entries_; the newest stands before the anchor.
  const int32_t position = block - first_block_ + 1;
  Entry& anchor = entries_[kEnd];
  entry->previous = anchor.previous;
  entry->next = kEnd;
  entries_[anchor.previous].next = position;
  anchor.previous = position;
  entry->idle = true;
  ++num_idle_;
}

void BlockPool::Unlink(Entry* entry) {
  entries_[entry->previous].next = entry->next;
  entries_[entry->next].previous = entry->previous;
  entry->idle = false;
  --num_idle_;
}

int32_t BlockPool::OldestIdle() const {
  std::lock_guard<std::mutex> lock(mutex_);
  const int32_t position = entries_[kEnd].next;
  return position == kEnd ? kNullBlock : position + first_block_ - 1;
}

void BlockPool::Refresh(int32_t block) {
  std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = At(block);
  if (!entry.idle) return;
  Unlink(&entry);
  Link(block, &entry);
}

int32_t BlockPool::references(Holder holder, int32_t block) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return At(block).references[Index(holder)];
}

bool BlockPool::IsPrivate(int32_t block) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return At(block).IsPrivate();
}

int32_t BlockPool::CountFreed(std::vector<int32_t> references) const {
  std::sort(references.begin(), references.end());
  std::lock_guard<std::mutex> lock(mutex_);
  int32_t freed = 0;
  for (auto first = references.begin(); first != references.end();) {
    const auto end = std::find_if(first, references.end(), [&](int32_t b) { return b != *first; });
    if (*first != kNullBlock) {
      const std::array<int32_t, 3>& held = At(*first).references;
      freed += held[Index(Holder::kRequest)] == end - first && held[Index(Holder::kPin)] == 0;
    }
    first = end;
  }
  return freed;
}

int32_t BlockPool::free_blocks() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int32_t>(free_.size());
}

int32_t BlockPool::idle_blocks() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return num_idle_;
}

int32_t BlockPool::available_blocks() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int32_t>(free_.size()) + num_idle_;
}

int32_t BlockPool::cached_blocks() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return num_cached_;
}

void BlockPool::CheckIntegrity() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<bool> free(entries_.size());
  for (int32_t block : free_) {
    const int32_t position = block - first_block_ + 1;
    if (free[position]) throw IntegrityError("block " + std::to_string(block) + " is free twice");
    free[position] = true;
  }
  int32_t idle = 0;
  for (int32_t at = entries_[kEnd].next; at != kEnd; at = entries_[at].next, ++idle) {
    if (!entries_[at].idle || idle > num_idle_) throw IntegrityError("the idle list is broken");
  }
  if (idle != num_idle_) throw IntegrityError("the idle list lost blocks");
  for (int32_t block = first_block_; block < end_block_; ++block) {
    const Entry& entry = At(block);
    if (free[block - first_block_ + 1] != entry.IsFree()) {
      throw IntegrityError("block " + std::to_string(block) + " is lost");
    }
    if (entry.idle != entry.ShouldIdle()) {
      throw IntegrityError("block " + std::to_string(block) + " is idle and held");
    }
  }
}

}  // namespace rtp_llm

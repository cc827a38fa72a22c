#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "rtp_llm/cpp/cache/errors.h"
#include "rtp_llm/cpp/scheduler/sequence.h"

namespace rtp_llm {

// Slots in the order of their ranks. Small and mostly appended to: a sorted array.
class RankedSlots {
 public:
  struct Entry {
    Rank rank;
    int32_t slot;
  };

  explicit RankedSlots(int32_t capacity) { entries_.reserve(capacity); }

  void Insert(const Rank& rank, int32_t slot) {
    entries_.insert(Position(rank), Entry{rank, slot});
  }
  void Erase(const Rank& rank, int32_t slot) {
    const auto at = Position(rank);
    if (at == entries_.end() || at->slot != slot) throw IntegrityError("a sequence lost its place");
    entries_.erase(at);
  }

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  int32_t first() const { return entries_.front().slot; }
  int32_t last() const { return entries_.back().slot; }
  int32_t operator[](size_t index) const { return entries_[index].slot; }
  std::vector<Entry>::const_iterator begin() const { return entries_.begin(); }
  std::vector<Entry>::const_iterator end() const { return entries_.end(); }

 private:
  std::vector<Entry>::iterator Position(const Rank& rank) {
    return std::lower_bound(entries_.begin(), entries_.end(), rank,
                            [](const Entry& entry, const Rank& key) { return entry.rank < key; });
  }

  std::vector<Entry> entries_;
};

// All sequences: slots that are taken and given back, ids, and who waits and who runs.
class SequenceSet {
 public:
  explicit SequenceSet(int32_t capacity)
      : waiting(capacity), running(capacity), receiving(capacity), sequences_(capacity) {
    for (int32_t slot = capacity; slot-- > 0;) free_slots_.push_back(slot);
    slot_of_id_.reserve(capacity);
  }

  Sequence& operator[](int32_t slot) { return sequences_[slot]; }
  const Sequence& operator[](int32_t slot) const { return sequences_[slot]; }

  // The slot of a live sequence, or -1.
  int32_t Find(int64_t id) const {
    const auto found = slot_of_id_.find(id);
    return found == slot_of_id_.end() ? -1 : found->second;
  }
  // Same, for a sequence known by slot and serial that may have ended meanwhile.
  bool IsLive(int32_t slot, int64_t serial) const {
    return sequences_[slot].state != SequenceState::kFree && sequences_[slot].rank.serial == serial;
  }

  int32_t Take(int64_t id) {
    const int32_t slot = free_slots_.back();
    free_slots_.pop_back();
    slot_of_id_.emplace(id, slot);
    sequences_[slot].id = id;
    sequences_[slot].rank.serial = ++last_serial_;
    return slot;
  }

  void GiveBack(int32_t slot) {
    Sequence& sequence = sequences_[slot];
    if (sequence.state == SequenceState::kFree) throw IntegrityError("a sequence ended twice");
    slot_of_id_.erase(sequence.id);
    SequenceCache cache = std::move(sequence.cache);  // keeps its allocations
    sequence = Sequence();
    sequence.cache = std::move(cache);
    free_slots_.push_back(slot);
  }

  size_t num_live() const { return slot_of_id_.size(); }
  size_t num_free() const { return free_slots_.size(); }
  int32_t capacity() const { return static_cast<int32_t>(sequences_.size()); }

  RankedSlots waiting;
  RankedSlots running;
  RankedSlots receiving;
  int32_t waiting_places = 0;  // sequences, followers included
  int32_t running_places = 0;  // receiving ones included: they will run

 private:
  std::vector<Sequence> sequences_;
  std::vector<int32_t> free_slots_;
  std::unordered_map<int64_t, int32_t> slot_of_id_;
  int64_t last_serial_ = 0;
};

}  // namespace rtp_llm

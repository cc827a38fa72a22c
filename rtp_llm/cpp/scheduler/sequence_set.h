// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "rtp_llm/cpp/cache/errors.h"
#include "rtp_llm/cpp/scheduler/fair_queue.h"
#include "rtp_llm/cpp/scheduler/ranked_slots.h"
#include "rtp_llm/cpp/scheduler/sequence.h"

namespace rtp_llm {

// All sequences: slots that are taken and given back, ids, and who waits and who runs.
class SequenceSet {
 public:
  explicit SequenceSet(int32_t capacity)
      : running(capacity), receiving(capacity), sequences_(capacity) {
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

  // Into the list of its state, and out of it.
  void Insert(int32_t slot) {
    const Sequence& sequence = sequences_[slot];
    if (sequence.state == SequenceState::kWaiting) {
      waiting.Insert(sequence.tenant, sequence.rank, slot);
    } else {
      ListOf(sequence.state).Insert(sequence.rank, slot);
    }
  }
  void Erase(int32_t slot) {
    const Sequence& sequence = sequences_[slot];
    if (sequence.state == SequenceState::kWaiting) {
      waiting.Erase(sequence.tenant, sequence.rank, slot);
    } else {
      ListOf(sequence.state).Erase(sequence.rank, slot);
    }
  }

  // From list to list, with its places.
  void Move(int32_t slot, SequenceState state) {
    Erase(slot);
    PlacesOf(sequences_[slot].state) -= sequences_[slot].places();
    sequences_[slot].state = state;
    Insert(slot);
    PlacesOf(state) += sequences_[slot].places();
  }
  // It is another one from now on: rows that batches in flight have of it are nobody's.
  void Renew(int32_t slot) {
    Erase(slot);
    sequences_[slot].rank.serial = ++last_serial_;
    Insert(slot);
  }
  // Sequences that wait, or that run or receive, followers included.
  int32_t& PlacesOf(SequenceState state) {
    return state == SequenceState::kWaiting ? waiting_places : running_places;
  }

  size_t num_live() const { return slot_of_id_.size(); }
  size_t num_free() const { return free_slots_.size(); }
  int32_t capacity() const { return static_cast<int32_t>(sequences_.size()); }

  FairQueue waiting;
  RankedSlots running;
  RankedSlots receiving;
  int32_t waiting_places = 0;  // sequences, followers included
  int32_t running_places = 0;  // receiving ones included: they will run

 private:
  RankedSlots& ListOf(SequenceState state) {
    return state == SequenceState::kReceiving ? receiving : running;
  }

  std::vector<Sequence> sequences_;
  std::vector<int32_t> free_slots_;
  std::unordered_map<int64_t, int32_t> slot_of_id_;
  int64_t last_serial_ = 0;
};

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "rtp_llm/cpp/cache/errors.h"

namespace rtp_llm {

// Who goes first: the smaller key, then the older sequence.
struct Rank {
  int64_t key = 0;       // step of arrival + priority * aging_steps
  int64_t serial = 0;    // unique for every sequence ever added, growing
  int32_t priority = 0;  // as it is in the key

  friend bool operator<(const Rank& a, const Rank& b) {
    return a.key != b.key ? a.key < b.key : a.serial < b.serial;
  }
};

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

}  // namespace rtp_llm

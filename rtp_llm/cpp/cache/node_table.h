#pragma once

#include <cstddef>
#include <cstdint>

#include "rtp_llm/cpp/cache/host_array.h"

namespace rtp_llm {

// Hash table of small numbers by a 64-bit hash kept elsewhere: open addressing with linear probing,
// at most half full, nothing allocated after construction. Equal hashes stand side by side.
class NodeTable {
 public:
  explicit NodeTable(int32_t capacity) : slots_(SlotsFor(capacity)), mask_(slots_.size() - 1) {}

  // The first node at `hash` for which `matches(node)`, or -1.
  template <typename Matches>
  int32_t Find(uint64_t hash, const Matches& matches) const {
    for (size_t at = hash & mask_; slots_[at] != 0; at = Next(at)) {
      if (matches(slots_[at] - 1)) return slots_[at] - 1;
    }
    return -1;
  }

  void Insert(uint64_t hash, int32_t node) {
    size_t at = hash & mask_;
    while (slots_[at] != 0) at = Next(at);
    slots_[at] = node + 1;
  }

  // `hash_of(node)` is asked for the neighbours too: they move up to close the gap.
  template <typename HashOf>
  void Erase(int32_t node, const HashOf& hash_of) {
    size_t hole = hash_of(node) & mask_;
    while (slots_[hole] != node + 1) hole = Next(hole);
    for (size_t at = Next(hole); slots_[at] != 0; at = Next(at)) {
      // An entry may move into the hole unless its home lies behind the hole.
      const size_t home = hash_of(slots_[at] - 1) & mask_;
      if (((at - home) & mask_) < ((at - hole) & mask_)) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = 0;
  }

 private:
  static size_t SlotsFor(int32_t capacity) {
    size_t size = 64;
    while (size < 2 * static_cast<size_t>(capacity)) size *= 2;
    return size;
  }
  size_t Next(size_t at) const { return (at + 1) & mask_; }

  HostArray<int32_t> slots_;  // node + 1, 0 = empty
  const size_t mask_;
};

}  // namespace rtp_llm

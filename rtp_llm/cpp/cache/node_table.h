// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "rtp_llm/cpp/cache/host_array.h"

namespace rtp_llm {

// Hash table of small numbers by a hash: open addressing with linear probing, at most half full,
// nothing allocated after construction. A slot keeps 32 bits of the hash, so that neighbours are
// told apart, and moved, without a look at what they stand for. Equal hashes stand side by side.
class NodeTable {
 public:
  explicit NodeTable(int32_t capacity) : slots_(SlotsFor(capacity)), mask_(slots_.size() - 1) {}

  // The first node at `hash` for which `matches(node)`, or -1.
  template <typename Matches>
  int32_t Find(uint64_t hash, const Matches& matches) const {
    const uint32_t tag = static_cast<uint32_t>(hash);
    for (size_t at = tag & mask_; slots_[at].entry != 0; at = Next(at)) {
      if (slots_[at].tag == tag && matches(slots_[at].entry - 1)) return slots_[at].entry - 1;
    }
    return -1;
  }

  void Insert(uint64_t hash, int32_t node) {
    const uint32_t tag = static_cast<uint32_t>(hash);
    size_t at = tag & mask_;
    while (slots_[at].entry != 0) at = Next(at);
    slots_[at] = {tag, node + 1};
  }

  // `node` must have been inserted with this hash.
  void Erase(uint64_t hash, int32_t node) {
    size_t hole = static_cast<uint32_t>(hash) & mask_;
    while (slots_[hole].entry != node + 1) hole = Next(hole);
    for (size_t at = Next(hole); slots_[at].entry != 0; at = Next(at)) {
      // An entry may move into the hole unless its home slot comes after the hole.
      const size_t home = slots_[at].tag & mask_;
      if (((at - home) & mask_) < ((at - hole) & mask_)) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = {};
  }

 private:
  struct Slot {
    uint32_t tag;
    int32_t entry;  // node + 1, 0 = empty
  };

  static size_t SlotsFor(int32_t capacity) {
    size_t size = 64;
    while (size < 2 * static_cast<size_t>(capacity)) size *= 2;
    return size;
  }
  size_t Next(size_t at) const { return (at + 1) & mask_; }

  HostArray<Slot> slots_;
  const size_t mask_;
};

}  // namespace rtp_llm

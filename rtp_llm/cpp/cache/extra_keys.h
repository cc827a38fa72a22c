// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "rtp_llm/cpp/cache/block_hash.h"

namespace rtp_llm {

// What besides tokens changes a cache's content (adapter, tenant, embeddings), as small counted
// numbers: equal number means equal key, so that comparing numbers is exact.
class ExtraKeys {
 public:
  // The key's number, with one reference more.
  int32_t Acquire(const std::string& key) {
    const auto found = number_of_key_.find(key);
    if (found != number_of_key_.end()) return Acquire(found->second);
    if (unused_.empty()) {
      unused_.push_back(static_cast<int32_t>(entries_.size()));
      entries_.emplace_back();
    }
    const int32_t number = unused_.back();
    unused_.pop_back();
    entries_[number] = {key, ChainHash(Hash128{}, key.data(), key.size()), 1};
    number_of_key_.emplace(key, number);
    return number;
  }

  // The number of a key that somebody holds, or -1.
  int32_t Find(const std::string& key) const {
    const auto found = number_of_key_.find(key);
    return found == number_of_key_.end() ? -1 : found->second;
  }

  int32_t Acquire(int32_t number) {
    ++entries_[number].references;
    return number;
  }

  void Release(int32_t number) {
    Entry& entry = entries_[number];
    if (--entry.references > 0) return;
    number_of_key_.erase(entry.key);
    entry.key.clear();
    unused_.push_back(number);
  }

  const Hash128& hash(int32_t number) const { return entries_[number].hash; }
  int32_t size() const { return static_cast<int32_t>(number_of_key_.size()); }

 private:
  struct Entry {
    std::string key;
    Hash128 hash;
    int32_t references = 0;
  };

  std::vector<Entry> entries_;
  std::vector<int32_t> unused_;
  std::unordered_map<std::string, int32_t> number_of_key_;
};

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/speculative/ngram_index.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace rtp_llm {
namespace {

constexpr size_t kFirstPlaces = 64;  // a power of two, as all sizes of tables

// Adds the token before those that were hashed so far.
uint64_t Extend(uint64_t hash, int32_t token) {
  hash = (hash ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

}  // namespace

NgramIndex::NgramIndex(int32_t min_n, int32_t max_n) : min_n_(min_n), max_n_(max_n) {
  if (min_n < 1 || max_n < min_n) {
    throw std::invalid_argument("n-grams of " + std::to_string(min_n) + " to " +
                                std::to_string(max_n) + " tokens: they must have 1 or more");
  }
  tables_.resize(max_n - min_n + 1);
  for (Table& table : tables_) table.ends.resize(kFirstPlaces);
}

void NgramIndex::Append(const int32_t* tokens, int64_t count) {
  tokens_.reserve(std::max<size_t>(tokens_.capacity(), tokens_.size() + count));
  for (int64_t i = 0; i < count; ++i) {
    // N-grams that end here are found from the next token on: only then does something follow them.
    const auto end = static_cast<int32_t>(tokens_.size());
    uint64_t hash = 0;
    for (int32_t n = 1; n <= std::min(max_n_, end); ++n) {
      hash = Extend(hash, tokens_[end - n]);
      if (n >= min_n_) Insert(n, hash, end);
    }
    tokens_.push_back(tokens[i]);
  }
}

bool NgramIndex::Propose(int32_t count, int32_t* out) const {
  const auto size = static_cast<int32_t>(tokens_.size());
  int32_t found = 0;
  uint64_t hash = 0;
  for (int32_t n = 1; n <= std::min(max_n_, size); ++n) {
    hash = Extend(hash, tokens_[size - n]);
    if (n < min_n_) continue;
    const int32_t end = Find(n, hash);
    if (end == 0) break;  // a longer one would have this one as its end
    found = end;
  }
  if (found == 0) return false;
  for (int32_t i = 0; i < count; ++i) {
    out[i] = found + i < size ? tokens_[found + i] : out[found + i - size];
  }
  return true;
}

void NgramIndex::Insert(int32_t n, uint64_t hash, int32_t end) {
  Table& table = tables_[n - min_n_];
  const size_t mask = table.ends.size() - 1;
  size_t place = hash & mask;
  for (; table.ends[place] != 0; place = (place + 1) & mask) {
    if (Equal(n, table.ends[place], end)) return;
  }
  table.ends[place] = end;
  if (2 * static_cast<size_t>(++table.used) > table.ends.size()) Grow(n);
}

int32_t NgramIndex::Find(int32_t n, uint64_t hash) const {
  const Table& table = tables_[n - min_n_];
  const size_t mask = table.ends.size() - 1;
  const auto size = static_cast<int32_t>(tokens_.size());
  for (size_t place = hash & mask; table.ends[place] != 0; place = (place + 1) & mask) {
    if (Equal(n, table.ends[place], size)) return table.ends[place];
  }
  return 0;
}

void NgramIndex::Grow(int32_t n) {
  std::vector<int32_t>& ends = tables_[n - min_n_].ends;
  std::vector<int32_t> larger(2 * ends.size());
  const size_t mask = larger.size() - 1;
  for (const int32_t end : ends) {
    if (end == 0) continue;
    size_t place = HashOf(n, end) & mask;
    while (larger[place] != 0) place = (place + 1) & mask;
    larger[place] = end;
  }
  ends = std::move(larger);
}

uint64_t NgramIndex::HashOf(int32_t n, int32_t end) const {
  uint64_t hash = 0;
  for (int32_t i = 1; i <= n; ++i) hash = Extend(hash, tokens_[end - i]);
  return hash;
}

bool NgramIndex::Equal(int32_t n, int32_t end, int32_t other) const {
  return std::equal(tokens_.begin() + (end - n), tokens_.begin() + end,
                    tokens_.begin() + (other - n));
}

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace rtp_llm {

// The tokens of one sequence, and where each of its n-grams occurred first: what followed there may
// follow here (prompt lookup decoding, https://github.com/apoorvumang/prompt-lookup-decoding).
// Appending and looking up take constant time for each token and each n.
class NgramIndex {
 public:
  // N-grams of min_n to max_n tokens, 1 <= min_n <= max_n.
  NgramIndex(int32_t min_n, int32_t max_n);

  void Append(const int32_t* tokens, int64_t count);

  // What followed the first occurrence of the longest n-gram that the sequence ends on. Writes
  // `count` tokens, or none if no n-gram at its end occurred before. A continuation that reaches
  // the end goes on with itself, as of a text that repeats itself.
  bool Propose(int32_t count, int32_t* out) const;

 private:
  // A hash table, with open addressing, of where n-grams of one n end; 0 is a free place.
  struct Table {
    std::vector<int32_t> ends;
    int32_t used = 0;
  };

  void Insert(int32_t n, uint64_t hash, int32_t end);
  int32_t Find(int32_t n, uint64_t hash) const;
  void Grow(int32_t n);
  uint64_t HashOf(int32_t n, int32_t end) const;
  bool Equal(int32_t n, int32_t end, int32_t other) const;

  const int32_t min_n_;
  const int32_t max_n_;
  std::vector<int32_t> tokens_;
  std::vector<Table> tables_;  // of min_n_, min_n_ + 1, ...
};

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache/block_hash.h"

#include <cstring>

namespace rtp_llm {
namespace {

// Odd constants with balanced bits, from the golden ratio and the fractions of small square roots.
constexpr uint64_t kMixA = 0x9e3779b97f4a7c15ull;
constexpr uint64_t kMixB = 0xbb67ae8584caa73bull;
constexpr uint64_t kMixC = 0x3c6ef372fe94f82bull;

uint64_t Fold(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t Finish(uint64_t x) {
  x ^= x >> 32;
  x *= kMixA;
  x ^= x >> 29;
  x *= kMixB;
  return x ^ (x >> 32);
}

}  // namespace

Hash128 ChainHash(const Hash128& parent, const void* data, size_t bytes) {
  // Two lanes of multiply-and-fold, with different keys and the words in different roles.
  uint64_t low = parent.low ^ Finish(bytes + kMixC);
  uint64_t high = parent.high + Finish(bytes ^ kMixA);
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    uint64_t first = 0;
    uint64_t second = 0;
    const size_t head = bytes < 8 ? bytes : 8;
    const size_t tail = bytes - head < 8 ? bytes - head : 8;
    std::memcpy(&first, next, head);
    if (tail > 0) std::memcpy(&second, next + head, tail);
    low = Fold(low ^ first ^ kMixA, second ^ kMixB) + (low >> 7 | low << 57);
    high = Fold(high ^ second ^ kMixC, first ^ kMixA) + (high >> 11 | high << 53);
    next += head + tail;
    bytes -= head + tail;
  }
  return {Finish(low + (high << 1)), Finish(high ^ low)};
}

}  // namespace rtp_llm

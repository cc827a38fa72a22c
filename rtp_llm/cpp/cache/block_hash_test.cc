// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache/block_hash.h"

#include <gtest/gtest.h>

#include <bitset>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace rtp_llm {
namespace {

using Tokens = std::vector<int32_t>;

Hash128 HashOf(const Hash128& parent, const Tokens& tokens) {
  return ChainHash(parent, tokens.data(), tokens.size() * sizeof(int32_t));
}

TEST(BlockHashTest, DependsOnContentAndOnWhatComesBefore) {
  const Hash128 root;
  const Hash128 first = HashOf(root, {1, 2, 3});
  EXPECT_EQ(first, HashOf(root, {1, 2, 3}));
  EXPECT_NE(first, HashOf(root, {1, 2, 4}));
  EXPECT_NE(first, HashOf(root, {2, 1, 3}));
  EXPECT_NE(first, HashOf(first, {1, 2, 3}));
  EXPECT_NE(HashOf(first, {5}), HashOf(HashOf(root, {1, 2, 4}), {5}));
  EXPECT_NE(root, HashOf(root, {}));
}

TEST(BlockHashTest, LengthCounts) {
  std::set<std::pair<uint64_t, uint64_t>> seen;
  const std::string zeros(40, '\0');
  for (size_t length = 0; length <= zeros.size(); ++length) {
    const Hash128 hash = ChainHash(Hash128{}, zeros.data(), length);
    EXPECT_TRUE(seen.emplace(hash.low, hash.high).second) << length;
  }
}

// One flipped bit of any token should flip about half of the bits of the hash.
TEST(BlockHashTest, EveryInputBitReachesTheWholeHash) {
  const Tokens tokens(16, 7);
  const Hash128 plain = HashOf(Hash128{1, 2}, tokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (int bit = 0; bit < 32; ++bit) {
      Tokens changed = tokens;
      changed[i] ^= static_cast<int32_t>(1u << bit);
      const Hash128 hash = HashOf(Hash128{1, 2}, changed);
      const size_t low = std::bitset<64>(plain.low ^ hash.low).count();
      const size_t high = std::bitset<64>(plain.high ^ hash.high).count();
      EXPECT_GT(low, 10u);
      EXPECT_GT(high, 10u);
      EXPECT_NEAR(static_cast<double>(low + high), 64.0, 32.0);
    }
  }
}

TEST(BlockHashTest, HalvesAreIndependentAndSpread) {
  std::set<uint64_t> low;
  std::set<uint64_t> high;
  std::vector<int> buckets(256);
  constexpr int kCount = 1 << 16;
  for (int i = 0; i < kCount; ++i) {
    const Hash128 hash = HashOf(Hash128{}, {i % 251, i / 251, 0, 0});
    low.insert(hash.low);
    high.insert(hash.high);
    ++buckets[hash.low % 256];
  }
  EXPECT_EQ(low.size(), static_cast<size_t>(kCount));
  EXPECT_EQ(high.size(), static_cast<size_t>(kCount));
  for (const int count : buckets) EXPECT_NEAR(count, kCount / 256, kCount / 256 / 2);
}

}  // namespace
}  // namespace rtp_llm

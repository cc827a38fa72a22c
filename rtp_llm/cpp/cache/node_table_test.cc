// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache/node_table.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "rtp_llm/cpp/cache/extra_keys.h"

namespace rtp_llm {
namespace {

// Few hashes and many nodes: long runs of neighbours, wrapping around the end of the table.
TEST(NodeTableTest, RandomInsertAndEraseWithCollisions) {
  constexpr int32_t kCapacity = 200;
  NodeTable table(kCapacity);
  std::mt19937_64 random(1);
  std::vector<uint64_t> hashes(kCapacity);
  std::vector<bool> present(kCapacity);
  for (int round = 0; round < 20000; ++round) {
    const auto node = static_cast<int32_t>(random() % kCapacity);
    if (present[node]) {
      table.Erase(hashes[node], node);
    } else {
      // Homes at the end of the table; some differ in bits above the table's size only.
      hashes[node] = 500 + random() % 30 + (random() % 2 << 20) + (random() % 2 << 40);
      table.Insert(hashes[node], node);
    }
    present[node] = !present[node];
    if (round % 50 != 0) continue;
    for (int32_t other = 0; other < kCapacity; ++other) {
      const int32_t found =
          table.Find(hashes[other], [&](int32_t candidate) { return candidate == other; });
      ASSERT_EQ(found, present[other] ? other : -1);
    }
  }
}

TEST(ExtraKeysTest, EqualNumberMeansEqualKey) {
  ExtraKeys keys;
  const int32_t empty = keys.Acquire("");
  const int32_t a = keys.Acquire("a");
  const int32_t zero = keys.Acquire(std::string("\0", 1));
  EXPECT_NE(empty, a);
  EXPECT_NE(empty, zero);
  EXPECT_NE(keys.hash(empty), keys.hash(zero));
  EXPECT_EQ(keys.Acquire("a"), a);
  EXPECT_EQ(keys.size(), 3);
  keys.Release(a);
  EXPECT_EQ(keys.Acquire("a"), a);
  keys.Release(a);
  keys.Release(a);
  EXPECT_EQ(keys.size(), 2);
  EXPECT_EQ(keys.Acquire("b"), a) << "numbers are used again";
}

}  // namespace
}  // namespace rtp_llm

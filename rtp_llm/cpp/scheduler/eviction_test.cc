// SPDX-License-Identifier: Apache-2.0
// Blocks that the prefix cache forgets, as a KV connector learns of them.

#include <gtest/gtest.h>

#include <vector>

#include "rtp_llm/cpp/scheduler/connector_fixture.h"

namespace rtp_llm {
namespace {

class EvictionTest : public ConnectorFixture {
 protected:
  void SetUp() override {
    SchedulerConfig config = DefaultConfig();
    config.groups[0].num_blocks = 9;
    Start(config);
  }
};

TEST_F(EvictionTest, EvictedBlocksAreReportedBeforeTheyAreWritten) {
  Add(1, 12, 2);
  ASSERT_TRUE(Schedule());
  const std::vector<Hash128> keys = scheduler->BlockKeys(1);
  ASSERT_EQ(keys.size(), 2u) << "the last token of three full blocks is always computed";
  const int32_t* table = scheduler->batch().groups[0].block_table.data();
  const std::vector<int32_t> blocks(table, table + 3);
  Commit();
  Drain();
  EXPECT_TRUE(scheduler->TakeEvicted().blocks.empty());
  Add(2, 26, 2);  // of eight blocks it needs seven
  ASSERT_TRUE(Schedule());
  const EvictedBlocks evicted = scheduler->TakeEvicted();
  ASSERT_EQ(evicted.blocks, (std::vector<int32_t>{blocks[2], blocks[1]})) << "leaves first";
  EXPECT_EQ(evicted.keys[1], keys[1]);
  EXPECT_EQ(evicted.groups, (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(evicted.tokens, (std::vector<int32_t>{1008, 1009, 1010, 1011, 1004, 1005, 1006, 1007}));
  EXPECT_TRUE(scheduler->TakeEvicted().blocks.empty());
  Commit();
  Drain();
}

TEST_F(EvictionTest, BlocksThatMayHoldNanAreNotReported) {
  Add(1, 12, 2);
  ASSERT_TRUE(Schedule());
  Commit(kNotFiniteRow);
  Add(2, 30, 2);
  ASSERT_TRUE(Schedule());
  EXPECT_TRUE(scheduler->TakeEvicted().blocks.empty());
  Commit();
  Drain();
}

TEST_F(EvictionTest, KeysDependOnTheExtraKey) {
  RequestOptions options = MaxTokens(2);
  Add(Ids{1}, 12, options);
  const std::vector<Hash128> plain = scheduler->BlockKeys(1);
  scheduler->Abort({1});
  options.extra_key = "tenant";
  Add(Ids{1}, 12, options);
  EXPECT_NE(plain[0], scheduler->BlockKeys(1)[0]);
  scheduler->Abort({1});
  options.use_prefix_cache = false;
  Add(Ids{1}, 12, options);
  EXPECT_TRUE(scheduler->BlockKeys(1).empty());
  Drain();
}

}  // namespace
}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache/cache_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "rtp_llm/cpp/cache/errors.h"

namespace rtp_llm {
namespace {

constexpr int32_t kBlock = 4;

CacheGroup Full(int32_t num_blocks, int32_t first_block = 1) {
  return {GroupKind::kFull, num_blocks, kBlock, 0, first_block};
}
CacheGroup Window(int32_t num_blocks, int32_t window, int32_t first_block = 1) {
  return {GroupKind::kSlidingWindow, num_blocks, kBlock, window, first_block};
}

CacheGroup Recurrent(int32_t num_blocks, int32_t block_size, int32_t first_block = 1) {
  return {GroupKind::kRecurrent, num_blocks, block_size, 0, first_block};
}

std::vector<int32_t> Range(int32_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

int32_t LiveBlocks(const BlockTable& table) {
  return static_cast<int32_t>(std::count_if(table.blocks.begin(), table.blocks.end(),
                                            [](int32_t block) { return block != kNullBlock; }));
}

class CacheManagerTest : public testing::Test {
 protected:
  SequenceCache Open(CacheManager* manager, bool use_prefix_cache = true) {
    SequenceCache cache;
    manager->Open("", use_prefix_cache, &cache);
    return cache;
  }
  // Computes tokens up to `end` in chunks.
  void Compute(CacheManager* manager, const std::vector<int32_t>& tokens, int32_t end,
               int32_t chunk, SequenceCache* cache) {
    manager->Lookup(tokens.data(), end, cache);
    for (int32_t at = manager->Attach(cache); at < end;) {
      const int32_t count = std::min(chunk, end - at);
      ASSERT_TRUE(manager->Reserve(at, count, cache, &copies_));
      at += count;
      manager->Publish(tokens.data(), at, manager->state_block_size(), cache);
    }
  }

  std::vector<BlockCopy> copies_;
};

TEST_F(CacheManagerTest, RefusesGroupsThatCannotWork) {
  const auto refuse = [](const std::vector<CacheGroup>& groups) {
    EXPECT_THROW(CacheManager(groups, true, 128), std::invalid_argument);
  };
  refuse({Full(1)});
  refuse({Full(4, 0)});
  refuse({Full(4, 4)});
  refuse({Window(4, 0)});
  refuse({{GroupKind::kFull, 4, kBlock, 8, 1}});
  refuse({{GroupKind::kFull, 4, 0, 0, 1}});
  refuse({Full(4), {GroupKind::kFull, 4, kBlock * 2, 0, 1}});
  refuse({{GroupKind::kFull, 1 << 30, kBlock, 0, 1}});
  refuse({Full(4), Recurrent(4, kBlock + 2)});
  refuse({Full(4), Recurrent(4, kBlock / 2)});
  refuse({Recurrent(4, kBlock), Recurrent(4, kBlock * 2)});
  refuse({Recurrent(1, kBlock)});
  refuse({{GroupKind::kRecurrent, 4, kBlock, 8, 1}});
}

TEST_F(CacheManagerTest, SequencesHoldNothingWithoutGroups) {
  CacheManager manager({}, false, 128);
  SequenceCache cache = Open(&manager);
  EXPECT_TRUE(manager.Reserve(0, 1000, &cache, &copies_));
  EXPECT_TRUE(cache.tables.empty() && copies_.empty());
  manager.Close(&cache);
  manager.CheckIntegrity({});
}

TEST_F(CacheManagerTest, GrowsByWholeBlocksOnly) {
  CacheManager manager({Full(10)}, false, 128);
  SequenceCache cache = Open(&manager);
  ASSERT_TRUE(manager.Reserve(0, 3, &cache, &copies_));
  EXPECT_EQ(cache.tables[0].blocks.size(), 1u);
  ASSERT_TRUE(manager.Reserve(3, 1, &cache, &copies_));
  EXPECT_EQ(cache.tables[0].blocks.size(), 1u);
  ASSERT_TRUE(manager.Reserve(4, 9, &cache, &copies_));
  EXPECT_EQ(cache.tables[0].blocks.size(), 4u);
  EXPECT_FALSE(manager.Reserve(13, 60, &cache, &copies_));
  EXPECT_EQ(cache.tables[0].blocks.size(), 4u) << "all or nothing";
  EXPECT_EQ(manager.FittingTokens(13, 60, &cache), 36 - 13);
  EXPECT_EQ(manager.FittingTokens(13, 2, &cache), 2);
  manager.Close(&cache);
  EXPECT_EQ(manager.AvailableBlocks(0), 9);
}

TEST_F(CacheManagerTest, NodesHaveTheSmallestBlockSize) {
  EXPECT_EQ(CacheManager({Recurrent(4, 12), Full(9)}, true, 128).block_size(), kBlock);
  EXPECT_EQ(CacheManager({Recurrent(4, 12), Full(9)}, true, 128).state_block_size(), 12);
  EXPECT_EQ(CacheManager({Recurrent(4, 12)}, true, 128).block_size(), 12);
  EXPECT_EQ(CacheManager({Full(9)}, true, 128).state_block_size(), 1);
}

TEST_F(CacheManagerTest, ServesTheDeepestSnapshotThatAllGroupsReach) {
  for (const bool windowed : {false, true}) {
    CacheManager manager({windowed ? Window(40, 30) : Full(40), Recurrent(9, 2 * kBlock)}, true,
                         128);
    const std::vector<int32_t> tokens = Range(60);
    SequenceCache first = Open(&manager);
    Compute(&manager, tokens, 36, 12, &first);  // snapshots after 24 tokens only
    for (int32_t length = 1; length <= 40; ++length) {
      SequenceCache other = Open(&manager);
      manager.Lookup(tokens.data(), length, &other);
      const int32_t served = manager.Attach(&other);
      EXPECT_EQ(served, length > 24 ? 24 : 0) << length;
      ASSERT_EQ(other.tables[1].blocks.size(), served > 0 ? 1u : 0u);
      // Where the prompt parts from a known one lies a junction, if a block ends there.
      const int32_t known = std::min(36, (length - 1) / kBlock * kBlock);
      const int32_t junction = known < 36 ? known / 8 * 8 : 0;
      EXPECT_EQ(other.junction, junction > served ? junction : 0) << length;
      manager.Close(&other);
      EXPECT_EQ(other.junction, 0);
    }
    manager.CheckIntegrity({&first});
    manager.Close(&first);
    manager.CheckIntegrity({});
  }
}

// Most nodes of such a tree have no block at all.
TEST_F(CacheManagerTest, RecurrentGroupsAloneKeepSnapshotsAfterLinks) {
  CacheManager manager({Recurrent(4, kBlock)}, true, 128);
  const std::vector<int32_t> tokens = Range(60);
  SequenceCache cache = Open(&manager);
  Compute(&manager, tokens, 40, 20, &cache);
  EXPECT_EQ(manager.prefix_cache()->num_nodes(), 10);
  EXPECT_EQ(manager.pool(0).cached_blocks(), 2);
  manager.CheckIntegrity({&cache});
  manager.Close(&cache);
  SequenceCache other = Open(&manager);
  manager.Lookup(tokens.data(), 45, &other);
  EXPECT_EQ(manager.Attach(&other), 40);
  ASSERT_TRUE(manager.Reserve(40, 3, &other, &copies_));
  manager.Publish(tokens.data(), 43, kBlock, &other);
  EXPECT_EQ(manager.prefix_cache()->num_nodes(), 10) << "no node that would serve nothing";
  manager.Close(&other);
  SequenceCache third = Open(&manager);
  ASSERT_TRUE(manager.Reserve(0, 4, &third, &copies_));
  SequenceCache fourth = Open(&manager);
  ASSERT_TRUE(manager.Reserve(0, 4, &fourth, &copies_));
  SequenceCache fifth = Open(&manager);
  ASSERT_TRUE(manager.Reserve(0, 4, &fifth, &copies_));
  EXPECT_EQ(manager.prefix_cache()->num_nodes(), 0) << "links go with what they lead to";
  for (SequenceCache* each : {&third, &fourth, &fifth}) manager.Close(each);
  manager.CheckIntegrity({});
}

TEST_F(CacheManagerTest, AStateIsWrittenInPlaceOnlyWhereNobodyElseHasIt) {
  CacheManager manager({Recurrent(6, kBlock)}, true, 128);
  const std::vector<int32_t> tokens = Range(40);
  SequenceCache cache = Open(&manager);
  const auto blocks = [&]() -> const std::vector<int32_t>& { return cache.tables[0].blocks; };
  ASSERT_TRUE(manager.Reserve(0, 3, &cache, &copies_));
  const int32_t current = blocks().back();
  ASSERT_TRUE(manager.Reserve(3, 1, &cache, &copies_));
  EXPECT_EQ(blocks(), std::vector<int32_t>{current}) << "private";
  manager.pool(0).Acquire(Holder::kPin, current);
  ASSERT_TRUE(manager.Reserve(3, 1, &cache, &copies_));
  EXPECT_EQ(blocks().size(), 2u) << "a transfer reads it";
  EXPECT_EQ(blocks().front(), current) << "and so does the step";
  manager.pool(0).Release(Holder::kPin, current);
  manager.Publish(tokens.data(), 4, 0, &cache);
  EXPECT_EQ(manager.pool(0).cached_blocks(), 0) << "not to be kept";
  manager.Publish(tokens.data(), 4, kBlock, &cache);
  EXPECT_EQ(manager.pool(0).cached_blocks(), 1);
  const int32_t snapshot = blocks().back();
  ASSERT_TRUE(manager.Reserve(4, 1, &cache, &copies_));
  EXPECT_EQ(blocks().front(), snapshot);
  EXPECT_NE(blocks().back(), snapshot) << "published";
  SequenceCache fork = Open(&manager);
  manager.Fork(cache, 5, /*in_step=*/false, &fork);
  EXPECT_EQ(fork.tables[0].blocks, std::vector<int32_t>{blocks().back()}) << "the latest only";
  ASSERT_TRUE(manager.Reserve(5, 1, &fork, &copies_));
  ASSERT_TRUE(manager.Reserve(5, 1, &cache, &copies_));
  EXPECT_EQ(fork.tables[0].blocks.front(), blocks().front()) << "both read it";
  EXPECT_NE(fork.tables[0].blocks.back(), blocks().back());
  EXPECT_TRUE(copies_.empty());
  manager.CheckIntegrity({&cache, &fork});
  manager.Close(&cache);
  manager.Close(&fork);
  manager.CheckIntegrity({});
}

TEST_F(CacheManagerTest, ServesAllButAtLeastOneToken) {
  CacheManager manager({Full(30)}, true, 128);
  const std::vector<int32_t> tokens = Range(20);
  SequenceCache first = Open(&manager);
  Compute(&manager, tokens, 20, 7, &first);
  for (int32_t length = 1; length <= 20; ++length) {
    SequenceCache other = Open(&manager);
    manager.Lookup(tokens.data(), length, &other);
    const int32_t served = manager.Attach(&other);
    EXPECT_EQ(served, (length - 1) / kBlock * kBlock) << length;
    manager.Close(&other);
  }
  SequenceCache without = Open(&manager, false);
  EXPECT_EQ(manager.Lookup(tokens.data(), 20, &without), 0);
  EXPECT_EQ(manager.Attach(&without), 0);
  manager.Close(&without);
  manager.CheckIntegrity({&first});
  manager.Close(&first);
  manager.CheckIntegrity({});
}

TEST_F(CacheManagerTest, SequencesWithoutPrefixCacheReleaseEverything) {
  CacheManager manager({Full(30)}, true, 128);
  SequenceCache cache = Open(&manager, false);
  Compute(&manager, Range(20), 20, 20, &cache);
  manager.Close(&cache);
  EXPECT_EQ(manager.pool(0).free_blocks(), 29);
  EXPECT_EQ(manager.prefix_cache()->num_nodes(), 0);
}

TEST_F(CacheManagerTest, WindowsKeepToTheirBound) {
  for (const int32_t window : {1, 2, 4, 5, 9, 17}) {
    for (const int32_t chunk : {1, 3, 4, 11}) {
      CacheManager manager({Window(40, window)}, true, 128);
      SequenceCache cache = Open(&manager);
      const std::vector<int32_t> tokens = Range(100);
      for (int32_t at = 0; at < 100;) {
        const int32_t count = std::min(chunk, 100 - at);
        ASSERT_TRUE(manager.Reserve(at, count, &cache, &copies_));
        const BlockTable& table = cache.tables[0];
        ASSERT_LE(LiveBlocks(table), manager.BlocksNeeded(0, 100, chunk));
        const int32_t oldest = std::max(0, at - window + 1);
        for (int32_t position = 0; position < at + count; ++position) {
          const bool needed = position >= oldest / kBlock * kBlock;
          ASSERT_EQ(table.blocks[position / kBlock] != kNullBlock, needed) << position;
        }
        at += count;
        manager.Publish(tokens.data(), at, 0, &cache);
      }
      manager.CheckIntegrity({&cache});
      manager.Close(&cache);
      EXPECT_EQ(manager.AvailableBlocks(0), 39);
    }
  }
}

TEST_F(CacheManagerTest, TwoGroupsWithDisjointIds) {
  CacheManager manager({Full(20), Window(40, 6, 20)}, true, 128);
  const std::vector<int32_t> tokens = Range(40);
  SequenceCache a = Open(&manager);
  SequenceCache b = Open(&manager);
  Compute(&manager, tokens, 33, 5, &a);
  Compute(&manager, tokens, 37, 5, &b);
  for (const SequenceCache* cache : {&a, &b}) {
    for (const int32_t block : cache->tables[0].blocks) EXPECT_TRUE(block >= 1 && block < 20);
    for (const int32_t block : cache->tables[1].blocks) {
      EXPECT_TRUE(block == kNullBlock || (block >= 20 && block < 40));
    }
  }
  EXPECT_EQ(a.tables[0].blocks[7], b.tables[0].blocks[7]) << "shared prefix";
  EXPECT_EQ(LiveBlocks(a.tables[0]), 9);
  EXPECT_LE(LiveBlocks(a.tables[1]), manager.BlocksNeeded(1, 40, 5));
  manager.CheckIntegrity({&a, &b});
  manager.Close(&a);
  manager.CheckIntegrity({&b});
  manager.Close(&b);
  manager.CheckIntegrity({});
}

TEST_F(CacheManagerTest, ReserveIsAllOrNothingAcrossGroups) {
  CacheManager manager({Full(20), Full(4)}, true, 128);
  SequenceCache cache = Open(&manager);
  EXPECT_FALSE(manager.Reserve(0, 16, &cache, &copies_));
  EXPECT_TRUE(cache.tables[0].blocks.empty());
  EXPECT_EQ(manager.FittingTokens(0, 16, &cache), 12);
  EXPECT_TRUE(manager.Reserve(0, 12, &cache, &copies_));
  manager.Close(&cache);
  manager.CheckIntegrity({});
}

TEST_F(CacheManagerTest, ForksCopyTheSharedTailWhenTheyWrite) {
  CacheManager manager({Full(20), Window(20, 7)}, true, 128);
  SequenceCache leader = Open(&manager);
  Compute(&manager, Range(10), 10, 10, &leader);
  leader.may_share_tail = true;
  SequenceCache forks[2] = {Open(&manager), Open(&manager)};
  for (SequenceCache& fork : forks) manager.Fork(leader, 10, /*in_step=*/false, &fork);
  EXPECT_EQ(forks[0].tables[0].blocks, leader.tables[0].blocks);
  const int32_t tail = leader.tables[0].blocks[2];
  const int32_t window_tail = leader.tables[1].blocks[2];

  ASSERT_TRUE(manager.Reserve(10, 1, &forks[0], &copies_));
  ASSERT_TRUE(manager.Reserve(10, 1, &leader, &copies_));
  ASSERT_TRUE(manager.Reserve(10, 1, &forks[1], &copies_));
  ASSERT_EQ(copies_.size(), 4u) << "two of three copy, in both groups";
  for (const BlockCopy& copy : copies_) {
    EXPECT_EQ(copy.source, copy.group == 0 ? tail : window_tail);
    EXPECT_EQ(manager.pool(copy.group).references(Holder::kPin, copy.source), 2);
  }
  EXPECT_EQ(forks[1].tables[0].blocks[2], tail) << "the last one writes in place";
  EXPECT_NE(forks[0].tables[0].blocks[2], leader.tables[0].blocks[2]);
  EXPECT_EQ(forks[0].tables[0].blocks[1], leader.tables[0].blocks[1]);
  manager.CheckIntegrity({&leader, &forks[0], &forks[1]});

  // While the copies wait, their source is not given out even if nobody has it any more.
  manager.Close(&forks[1]);
  EXPECT_EQ(manager.pool(0).references(Holder::kRequest, tail), 0);
  const int32_t before = manager.pool(0).free_blocks();
  manager.ReleaseCopies(&copies_);
  EXPECT_EQ(manager.pool(0).free_blocks(), before + 1);
  manager.Close(&forks[0]);
  manager.Close(&leader);
  manager.CheckIntegrity({});
}

TEST_F(CacheManagerTest, ForksAtABlockBorderCopyNothing) {
  CacheManager manager({Full(20)}, true, 128);
  SequenceCache leader = Open(&manager);
  Compute(&manager, Range(8), 8, 8, &leader);
  SequenceCache fork = Open(&manager);
  leader.may_share_tail = true;
  manager.Fork(leader, 8, /*in_step=*/false, &fork);
  ASSERT_TRUE(manager.Reserve(8, 1, &leader, &copies_));
  ASSERT_TRUE(manager.Reserve(8, 1, &fork, &copies_));
  EXPECT_TRUE(copies_.empty());
  EXPECT_NE(leader.tables[0].blocks[2], fork.tables[0].blocks[2]);
  manager.Close(&leader);
  manager.Close(&fork);
  manager.CheckIntegrity({});
}

TEST_F(CacheManagerTest, AForkThatFindsNoBlockLosesNothing) {
  CacheManager manager({Full(4)}, false, 128);
  SequenceCache leader = Open(&manager);
  ASSERT_TRUE(manager.Reserve(0, 10, &leader, &copies_));
  SequenceCache fork = Open(&manager);
  leader.may_share_tail = true;
  manager.Fork(leader, 10, /*in_step=*/false, &fork);
  EXPECT_FALSE(manager.Reserve(10, 1, &fork, &copies_));
  EXPECT_EQ(manager.FittingTokens(10, 1, &fork), 0);
  EXPECT_TRUE(copies_.empty());
  EXPECT_EQ(fork.tables[0].blocks, leader.tables[0].blocks);
  manager.Close(&leader);
  EXPECT_TRUE(manager.Reserve(10, 1, &fork, &copies_)) << "alone, it writes in place";
  manager.Close(&fork);
  manager.CheckIntegrity({});
}

TEST_F(CacheManagerTest, IntegrityCheckSeesLostAndSharedBlocks) {
  CacheManager manager({Full(11)}, true, 128);
  SequenceCache cache = Open(&manager);
  ASSERT_TRUE(manager.Reserve(0, 8, &cache, &copies_));
  EXPECT_THROW(manager.CheckIntegrity({}), IntegrityError) << "held by no table";
  SequenceCache copy = cache;
  EXPECT_THROW(manager.CheckIntegrity({&cache, &copy}), IntegrityError) << "held twice";
  cache.tables[0].blocks[0] = kNullBlock;
  EXPECT_THROW(manager.CheckIntegrity({&cache}), IntegrityError) << "a hole";
  cache.tables[0].blocks[0] = copy.tables[0].blocks[0];
  manager.CheckIntegrity({&cache});
  manager.Close(&cache);
}

}  // namespace
}  // namespace rtp_llm

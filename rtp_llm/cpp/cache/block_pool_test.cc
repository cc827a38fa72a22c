// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "rtp_llm/cpp/cache/errors.h"

namespace rtp_llm {
namespace {

TEST(BlockPoolTest, GivesEveryBlockOnceAndNeverThePaddingBlock) {
  BlockPool pool(1, 9);
  std::vector<int32_t> blocks(8);
  ASSERT_TRUE(pool.Allocate(8, blocks.data()));
  EXPECT_EQ(std::set<int32_t>(blocks.begin(), blocks.end()),
            (std::set<int32_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(pool.free_blocks(), 0);
  int32_t more = 77;
  EXPECT_FALSE(pool.Allocate(1, &more));
  EXPECT_EQ(more, 77);
  pool.Release(Holder::kRequest, blocks.data(), 8);
  EXPECT_EQ(pool.free_blocks(), 8);
  pool.CheckIntegrity();
}

TEST(BlockPoolTest, AllocationIsAllOrNothing) {
  BlockPool pool(1, 5);
  std::vector<int32_t> blocks(5);
  EXPECT_FALSE(pool.Allocate(5, blocks.data()));
  EXPECT_EQ(pool.free_blocks(), 4);
  EXPECT_TRUE(pool.Allocate(0, nullptr));
}

TEST(BlockPoolTest, RangesOfTwoGroupsAreDisjoint) {
  BlockPool low(1, 5);
  BlockPool high(5, 8);
  EXPECT_EQ(low.total_blocks(), 4);
  EXPECT_EQ(high.total_blocks(), 3);
  int32_t blocks[3];
  ASSERT_TRUE(high.Allocate(3, blocks));
  EXPECT_EQ(std::set<int32_t>(blocks, blocks + 3), (std::set<int32_t>{5, 6, 7}));
  EXPECT_THROW(low.Acquire(Holder::kRequest, 5), IntegrityError);
  EXPECT_THROW(high.Acquire(Holder::kRequest, 4), IntegrityError);
  EXPECT_THROW(BlockPool(0, 5), std::invalid_argument);
  EXPECT_THROW(BlockPool(5, 5), std::invalid_argument);
}

TEST(BlockPoolTest, FreeMeansThatNobodyHoldsIt) {
  BlockPool pool(1, 3);
  int32_t block;
  ASSERT_TRUE(pool.Allocate(1, &block));
  pool.Acquire(Holder::kCache, block);
  pool.Acquire(Holder::kPin, block);
  pool.Acquire(Holder::kPin, block);
  EXPECT_EQ(pool.cached_blocks(), 1);
  pool.Release(Holder::kRequest, block);
  pool.Release(Holder::kCache, block);
  pool.Release(Holder::kPin, block);
  EXPECT_EQ(pool.free_blocks(), 1);
  EXPECT_EQ(pool.cached_blocks(), 0);
  pool.Release(Holder::kPin, block);
  EXPECT_EQ(pool.free_blocks(), 2);
  pool.CheckIntegrity();
}

TEST(BlockPoolTest, OnlyTheLastReferenceFreesABlock) {
  BlockPool pool(1, 9);
  std::vector<int32_t> blocks(4);
  ASSERT_TRUE(pool.Allocate(4, blocks.data()));
  pool.Acquire(Holder::kRequest, blocks[1]);  // another request
  pool.Acquire(Holder::kCache, blocks[2]);    // it becomes idle
  pool.Acquire(Holder::kPin, blocks[3]);
  EXPECT_EQ(pool.CountFreed({blocks[1], blocks[3], kNullBlock, blocks[0], blocks[2]}), 2);
  EXPECT_EQ(pool.CountFreed({blocks[1], blocks[0], blocks[1]}), 2);
  EXPECT_EQ(pool.CountFreed({}), 0);
}

TEST(BlockPoolTest, DetectsDoubleReleaseAndUseAfterFree) {
  BlockPool pool(1, 3);
  int32_t block;
  ASSERT_TRUE(pool.Allocate(1, &block));
  EXPECT_THROW(pool.Release(Holder::kCache, block), IntegrityError);
  pool.Release(Holder::kRequest, block);
  EXPECT_THROW(pool.Release(Holder::kRequest, block), IntegrityError);
  EXPECT_THROW(pool.Acquire(Holder::kRequest, block), IntegrityError);
  pool.CheckIntegrity();
}

TEST(BlockPoolTest, NullEntriesAreSkipped) {
  BlockPool pool(1, 3);
  int32_t table[3] = {kNullBlock, kNullBlock, kNullBlock};
  ASSERT_TRUE(pool.Allocate(1, &table[1]));
  pool.Acquire(Holder::kRequest, table, 3);
  EXPECT_EQ(pool.references(Holder::kRequest, table[1]), 2);
  pool.Release(Holder::kRequest, table, 3);
  pool.Release(Holder::kRequest, table, 3);
  EXPECT_EQ(pool.free_blocks(), 2);
}

TEST(BlockPoolTest, IdleBlocksAreOrderedByWhenTheyBecameIdleTailFirst) {
  BlockPool pool(1, 6);
  int32_t table[4];
  ASSERT_TRUE(pool.Allocate(4, table));
  pool.Acquire(Holder::kCache, table, 4);
  EXPECT_EQ(pool.OldestIdle(), kNullBlock);
  pool.Release(Holder::kRequest, table, 4);
  EXPECT_EQ(pool.idle_blocks(), 4);
  EXPECT_EQ(pool.available_blocks(), 5);
  EXPECT_EQ(pool.OldestIdle(), table[3]) << "the tail of a prefix goes before its head";

  pool.Refresh(table[3]);
  EXPECT_EQ(pool.OldestIdle(), table[2]);
  pool.Acquire(Holder::kRequest, table[2]);  // a hit
  EXPECT_EQ(pool.OldestIdle(), table[1]);
  pool.Acquire(Holder::kPin, table[1]);
  EXPECT_EQ(pool.OldestIdle(), table[0]) << "a pinned block is not idle";
  pool.Release(Holder::kPin, table[1]);
  pool.Release(Holder::kCache, table[0]);
  EXPECT_EQ(pool.OldestIdle(), table[3]);
  pool.CheckIntegrity();
}

// A thread that takes, shares and gives back blocks; nothing may be lost or given twice.
class Worker {
 public:
  Worker(BlockPool* pool, std::vector<std::atomic<int>>* owners, int seed)
      : pool_(*pool), owners_(*owners), random_(seed) {}

  void Run(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      if (held_.empty() || random_() % 2 == 0) {
        Take();
      } else {
        GiveBack();
      }
      if (round % 500 == 0) pool_.CheckIntegrity();
    }
    while (!held_.empty()) GiveBack();
  }

 private:
  void Take() {
    std::vector<int32_t> blocks(1 + random_() % 6);
    const auto count = static_cast<int32_t>(blocks.size());
    if (!pool_.Allocate(count, blocks.data())) return;
    for (const int32_t block : blocks) EXPECT_EQ(owners_[block].fetch_add(1), 0);
    pool_.Acquire(Holder::kPin, blocks.data(), count);
    pool_.Acquire(Holder::kCache, blocks.data(), count);
    held_.push_back(std::move(blocks));
  }

  void GiveBack() {
    const std::vector<int32_t> blocks = std::move(held_.back());
    held_.pop_back();
    Holder order[] = {Holder::kRequest, Holder::kPin, Holder::kCache};
    std::shuffle(std::begin(order), std::end(order), random_);
    const auto count = static_cast<int32_t>(blocks.size());
    pool_.Release(order[0], blocks.data(), count);
    pool_.Release(order[1], blocks.data(), count);
    for (const int32_t block : blocks) owners_[block].fetch_sub(1);
    pool_.Release(order[2], blocks.data(), count);
  }

  BlockPool& pool_;
  std::vector<std::atomic<int>>& owners_;
  std::mt19937 random_;
  std::vector<std::vector<int32_t>> held_;
};

TEST(BlockPoolTest, EightThreads) {
  BlockPool pool(1, 65);
  std::vector<std::atomic<int>> owners(65);
  std::vector<std::thread> threads;
  for (int seed = 0; seed < 8; ++seed) {
    threads.emplace_back([&, seed] { Worker(&pool, &owners, seed).Run(3000); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.free_blocks(), pool.total_blocks());
  EXPECT_EQ(pool.cached_blocks(), 0);
  EXPECT_EQ(pool.idle_blocks(), 0);
  pool.CheckIntegrity();
}

}  // namespace
}  // namespace rtp_llm

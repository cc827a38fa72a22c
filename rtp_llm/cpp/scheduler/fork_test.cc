// SPDX-License-Identifier: Apache-2.0
// Forks of sequences in the middle of decoding.

#include <gtest/gtest.h>

#include <stdexcept>

#include "rtp_llm/cpp/scheduler/recurrent_fixture.h"
#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {
namespace {

class ForkTest : public SchedulerFixture {
 protected:
  void Restart(bool overlap) {
    SchedulerConfig config = DefaultConfig();
    config.overlap = overlap;
    Start(config);
  }
  int32_t BlockOf(int32_t row, int32_t index) {
    const Batch::GroupArrays& arrays = scheduler->batch().groups[0];
    return arrays.block_table[static_cast<size_t>(row) * arrays.table_width + index];
  }
  int32_t Copies() { return scheduler->batch().groups[0].num_copies; }
};

TEST_F(ForkTest, SharesFullBlocksAndCopiesTheLastOne) {
  Add(1, 6, 20);
  ASSERT_TRUE(Step(7) && Step(8) && Step(9));  // 8 tokens are computed, one is not
  EXPECT_EQ(scheduler->Fork(1, {2, 3}, {5, 6}).size(), 2u);
  scheduler->CheckIntegrity();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), (Ids{1, 2, 3}));
  EXPECT_EQ(BatchCounts(), (std::vector<int32_t>{1, 1, 1}));
  EXPECT_EQ(Copies(), 0) << "each begins a block";
  const Batch& batch = scheduler->batch();
  for (int32_t row = 0; row < 3; ++row) {
    EXPECT_EQ(batch.token_ids[row], row == 0 ? 9 : 4 + row);
    EXPECT_EQ(batch.positions[row], 8);
    EXPECT_EQ(batch.row_steps[row], 3);
    EXPECT_EQ(BlockOf(row, 1), BlockOf(0, 1));
    EXPECT_TRUE(row == 0 || BlockOf(row, 2) != BlockOf(0, 2));
  }
  Commit();
  scheduler->Fork(2, {4});
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), (Ids{1, 2, 3, 4}));
  EXPECT_EQ(Copies(), 1);
  EXPECT_EQ(BlockOf(3, 1), BlockOf(1, 1));
  EXPECT_NE(BlockOf(3, 2), BlockOf(1, 2));
  Commit();
  EXPECT_EQ(Drain().size(), 4u);
}

TEST_F(ForkTest, WithABatchInFlightTheSameTokenIsComputedAgain) {
  Restart(/*overlap=*/true);
  Add(1, 6, 20);
  ASSERT_TRUE(Schedule() && Schedule());
  EXPECT_THROW(scheduler->Fork(1, {2}), std::invalid_argument) << "its token is pending";
  Commit(7);
  scheduler->Fork(1, {2}, {5});
  scheduler->CheckIntegrity();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), (Ids{1, 2}));
  const Batch& batch = scheduler->batch();
  EXPECT_EQ(batch.token_ids[0], -1) << "sampled by the batch in flight";
  EXPECT_EQ(batch.token_ids[1], 5);
  EXPECT_EQ(batch.positions[0], 7);
  EXPECT_EQ(batch.positions[1], 6);
  EXPECT_EQ(Copies(), 1);
  scheduler->CheckIntegrity();
  Commit();
  Commit();
  EXPECT_EQ(Drain().size(), 2u);
}

TEST_F(ForkTest, ABlockThatTheOtherOneFilledAndLeftIsNotWritten) {
  Restart(/*overlap=*/true);
  Add(1, 7, 3);
  ASSERT_TRUE(Schedule() && Schedule());
  Commit(7);
  scheduler->Fork(1, {2}, {5});  // the batch in flight fills the block that they share
  Commit(8);
  scheduler->Abort({1});
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{2});
  EXPECT_EQ(Copies(), 1) << "the prefix cache has it";
  scheduler->CheckIntegrity();
  Commit();
  EXPECT_EQ(Drain(), Ids{2});
}

TEST_F(ForkTest, WithoutAPlaceItWaitsAndIsComputedAgain) {
  SchedulerConfig config = DefaultConfig();
  config.max_running = 1;
  config.prefix_cache = false;
  Start(config);
  Add(1, 6, 4);
  ASSERT_TRUE(Step(7) && Step(8));
  scheduler->Fork(1, {2}, {5});
  EXPECT_EQ(scheduler->stats().waiting, 1);
  ASSERT_TRUE(Step(9) && Step(9));
  EXPECT_EQ(Ended(), Ids{1});
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{2});
  EXPECT_EQ(BatchCounts(), std::vector<int32_t>{8});
  EXPECT_EQ(scheduler->batch().token_ids[7], 5);
  Commit();
  EXPECT_EQ(Drain(), Ids{2});
}

TEST_F(ForkTest, WhatMakesNoSenseIsRefused) {
  Add(1, 6, 4);
  EXPECT_THROW(scheduler->Fork(1, {2}), std::invalid_argument) << "it waits";
  ASSERT_TRUE(Step());
  EXPECT_THROW(scheduler->Fork(9, {2}), std::invalid_argument);
  EXPECT_THROW(scheduler->Fork(1, {1}), std::invalid_argument);
  EXPECT_THROW(scheduler->Fork(1, {2, 2}), std::invalid_argument);
  EXPECT_THROW(scheduler->Fork(1, {2}, {3, 4}), std::invalid_argument);
  EXPECT_THROW(scheduler->Fork(1, {2}, {-1}), std::invalid_argument);
  Ids many(40);
  std::iota(many.begin(), many.end(), 10);
  EXPECT_THROW(scheduler->Fork(1, many), QueueFullError);
  EXPECT_EQ(Drain(), Ids{1});
}

class RecurrentForkTest : public RecurrentTest {};

TEST_F(RecurrentForkTest, ReadsTheStateOfTheOtherOne) {
  AddPrompt(1, Numbers(0, 9), 9);
  Chunks();
  scheduler->Fork(1, {2}, {5});
  scheduler->CheckIntegrity();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), (Ids{1, 2}));
  EXPECT_EQ(Reads()[0], Reads()[1]);
  EXPECT_NE(Writes()[0], Writes()[1]);
  Commit();
  EXPECT_EQ(Drain().size(), 2u);
}

TEST_F(RecurrentForkTest, AStateThatTheStepInFlightOverwritesIsComputedAgain) {
  SchedulerConfig config = Hybrid();
  config.overlap = true;
  Start(config);
  AddPrompt(1, Numbers(0, 9), 12);
  for (int i = 0; i < 4; ++i) {
    while (scheduler->uncommitted().size() < 2 && Schedule()) {
    }
    Commit();
  }
  scheduler->Fork(1, {2}, {5});
  EXPECT_EQ(scheduler->stats().waiting, 1);
  scheduler->CheckIntegrity();
  Commit();
  EXPECT_EQ(Drain().size(), 2u);
}

}  // namespace
}  // namespace rtp_llm

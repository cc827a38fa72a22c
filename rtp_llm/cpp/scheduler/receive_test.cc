// SPDX-License-Identifier: Apache-2.0
// Sequences with tokens that a connector loads: they own blocks, wait, and go on or go back.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "rtp_llm/cpp/scheduler/connector_fixture.h"

namespace rtp_llm {
namespace {

using Blocks = std::vector<std::vector<int32_t>>;

class ReceiveTest : public ConnectorFixture {};

TEST_F(ReceiveTest, OwnsItsBlocksAndRunsOnceTheyHaveArrived) {
  AddRemote(1, 10);
  EXPECT_FALSE(Schedule());
  EXPECT_EQ(Receivers(), Ids{1});
  EXPECT_EQ(Receivers(), Ids{});
  EXPECT_EQ(Available(), 100 - 3);  // 10 tokens and the first new one
  EXPECT_TRUE(scheduler->has_work());
  EXPECT_FALSE(Schedule());
  scheduler->CheckIntegrity();

  EXPECT_EQ(scheduler->FinishRecv(1, 77, 0), FinishReason::kNone);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchCounts(), std::vector<int32_t>{1});
  EXPECT_EQ(scheduler->batch().token_ids[0], 77);
  EXPECT_EQ(scheduler->batch().positions[0], 10);
  EXPECT_EQ(scheduler->batch().row_steps[0], 1);
  Commit();
  EXPECT_EQ(Drain(), Ids{1});
}

TEST_F(ReceiveTest, ReservesTheBlockOfTheFirstNewToken) {
  AddRemote(1, 8);
  EXPECT_FALSE(Schedule());
  EXPECT_EQ(Available(), 100 - 3);
  scheduler->Abort({1});
  EXPECT_EQ(Available(), 100);
}

TEST_F(ReceiveTest, FirstTokenMayEndIt) {
  RequestOptions options = MaxTokens(5);
  options.eos_token_ids = {7};
  AddRemote(1, 6, options);
  Schedule();
  EXPECT_EQ(scheduler->FinishRecv(1, 7, 0), FinishReason::kEos);
  EXPECT_FALSE(scheduler->has_work());
  Drain();
}

TEST_F(ReceiveTest, OthersRunMeanwhile) {
  AddRemote(1, 10);
  Add(2, 6, 3);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{2});
  Commit();
  ASSERT_TRUE(Step());
  EXPECT_EQ(scheduler->stats().receiving, 1);
  scheduler->FinishRecv(1, 5, 0);
  Drain();
}

TEST_F(ReceiveTest, ArrivedPromptServesOthers) {
  AddRemote(1, 9);
  Schedule();
  scheduler->FinishRecv(1, 5, 4);
  std::vector<int32_t> prompt(9);
  std::iota(prompt.begin(), prompt.end(), 1000);
  scheduler->Add({2}, prompt.data(), 9, MaxTokens(2));
  ASSERT_TRUE(Schedule());
  Commit();
  EXPECT_EQ(scheduler->result().cached_tokens[0], 4);  // what the other worker said
  EXPECT_EQ(scheduler->result().cached_tokens[1], 8);
  Drain();
}

TEST_F(ReceiveTest, TakesTheCachedPartFromHere) {
  std::vector<int32_t> prompt(11);
  std::iota(prompt.begin(), prompt.end(), 0);
  scheduler->Add({1}, prompt.data(), 11, MaxTokens(1));
  Step();
  matched[2] = 11;
  scheduler->Add({2}, prompt.data(), 11, MaxTokens(3));
  Schedule();
  const auto receivers = scheduler->TakeReceivers();
  ASSERT_EQ(receivers.size(), 1u);
  EXPECT_EQ(receivers[0].computed, 8);
  EXPECT_EQ(receivers[0].end, 11);
  scheduler->FinishRecv(2, 3, 8);
  Drain();
}

TEST_F(ReceiveTest, ComputedHereAfterAll) {
  AddRemote(1, 10);
  Add(2, 6, 3);
  Step();
  scheduler->Recompute(1);  // and not received again
  EXPECT_EQ(scheduler->stats().waiting, 1);
  scheduler->CheckIntegrity();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchCounts(), (std::vector<int32_t>{1, 10}));
  EXPECT_EQ(Receivers(), Ids{});
  Commit();
  Drain();
}

TEST_F(ReceiveTest, HeldBlocksOutliveTheirSequence) {
  AddRemote(1, 10);
  Schedule();
  const Blocks held = scheduler->Pin(1, 0, 3);
  EXPECT_EQ(held[0].size(), 3u);
  scheduler->Abort({1});
  EXPECT_FALSE(scheduler->has_work());
  EXPECT_EQ(Available(), 100 - 3);
  EXPECT_EQ(scheduler->stats().held, 1);
  scheduler->CheckIntegrity();
  EXPECT_TRUE(scheduler->Unpin(1));
  EXPECT_FALSE(scheduler->Unpin(1));
  Drain();
}

TEST_F(ReceiveTest, HeldBlocksOfAFinishedPromptStayUntilTheyAreRead) {
  Add(1, 10, 1);
  Schedule();
  scheduler->Pin(1, 0, 2);
  scheduler->Pin(1, 2, 3);
  Commit();
  EXPECT_EQ(Ended(), Ids{1});
  EXPECT_EQ(Available(), 100 - 3);
  EXPECT_TRUE(scheduler->Unpin(1));
  Drain();
}

TEST_F(ReceiveTest, IsNeverPreempted) {
  SchedulerConfig config = DefaultConfig();
  config.groups[0].num_blocks = 9;
  Start(config);
  Add(1, 4, 20);
  Step();
  AddRemote(2, 15);  // 4 blocks
  ASSERT_TRUE(Step());
  EXPECT_EQ(Receivers(), Ids{2});
  int32_t steps = 0;
  while (Step()) ++steps;  // until the first one needs a fifth block
  EXPECT_GT(steps, 5);
  EXPECT_EQ(scheduler->stats().preemptions, 0);
  EXPECT_EQ(scheduler->stats().receiving, 1);
  scheduler->CheckIntegrity();
  scheduler->FinishRecv(2, 5, 0);  // now it may be, for it can be computed here
  ASSERT_TRUE(Step());
  EXPECT_EQ(scheduler->stats().preemptions, 1);
  Drain();
}

TEST_F(ReceiveTest, WaitsForAllItsBlocks) {
  SchedulerConfig config = DefaultConfig();
  config.groups[0].num_blocks = 9;
  Start(config);
  Add(1, 16, 3);
  AddRemote(2, 20);
  ASSERT_TRUE(Step());
  EXPECT_EQ(Receivers(), Ids{});
  while (Step() && scheduler->stats().waiting > 0) {
  }
  Schedule();
  EXPECT_EQ(Receivers(), Ids{2});
  scheduler->FinishRecv(2, 5, 0);
  Drain();
}

TEST_F(ReceiveTest, WindowGroupsReceiveTheirTailOnly) {
  SchedulerConfig config = DefaultConfig();
  config.groups = {{GroupKind::kFull, 40, 4, 0, 1}, {GroupKind::kSlidingWindow, 10, 4, 6, 1}};
  Start(config);
  AddRemote(1, 60);
  Schedule();
  const Blocks held = scheduler->Pin(1, 0, 15);
  EXPECT_EQ(std::count(held[0].begin(), held[0].end(), kNullBlock), 0);
  EXPECT_EQ(std::count(held[1].begin(), held[1].end(), kNullBlock), 13);  // 55 and later are read
  scheduler->Unpin(1);
  scheduler->FinishRecv(1, 5, 0);
  Drain();
}

TEST_F(ReceiveTest, HoldsOfAWindowOnlyWhatLaterTokensRead) {
  SchedulerConfig config = DefaultConfig();
  config.groups = {{GroupKind::kSlidingWindow, 14, 4, 6, 1}};
  Start(config);
  Add(1, 60, 1);
  ASSERT_TRUE(Schedule());
  const Blocks held = scheduler->Pin(1, 0, 8);
  EXPECT_EQ(std::count(held[0].begin(), held[0].end(), kNullBlock), 8);
  Commit();
  ASSERT_TRUE(Schedule());
  const Blocks tail = scheduler->Pin(1, 8, 15);
  EXPECT_EQ(std::count(tail[0].begin(), tail[0].end(), kNullBlock), 5);
  scheduler->Unpin(1);
  Commit();
  Drain();
}

TEST_F(ReceiveTest, RefusesWhatMakesNoSense) {
  Add(1, 8, 4);
  Schedule();
  EXPECT_THROW(scheduler->FinishRecv(1, 5, 0), std::invalid_argument);
  EXPECT_THROW(scheduler->Recompute(1), std::invalid_argument);
  EXPECT_THROW(scheduler->FinishLoad(1, 4), std::invalid_argument);
  EXPECT_THROW(scheduler->BlockKeys(2), std::invalid_argument);
  EXPECT_THROW(scheduler->FinishRecv(2, 5, 0), std::invalid_argument);
  EXPECT_THROW(scheduler->Pin(2, 0, 1), std::invalid_argument);
  EXPECT_THROW(scheduler->Pin(1, 0, 3), std::invalid_argument);
  EXPECT_FALSE(scheduler->Unpin(1));
  Commit();
  Drain();
}

TEST_F(ReceiveTest, TheRestOfAPartIsComputed) {
  matched[1] = 8;
  Add(1, 15, 3);
  EXPECT_FALSE(Schedule());
  const auto receivers = scheduler->TakeReceivers();
  ASSERT_EQ(receivers.size(), 1u);
  EXPECT_EQ(receivers[0].computed, 0);
  EXPECT_EQ(receivers[0].end, 8);
  EXPECT_EQ(scheduler->Pin(1, 0, 2)[0].size(), 2u);
  EXPECT_THROW(scheduler->FinishRecv(1, 5, 0), std::invalid_argument) << "seven tokens are missing";
  EXPECT_THROW(scheduler->FinishLoad(1, 9), std::invalid_argument);
  scheduler->Unpin(1);
  scheduler->FinishLoad(1, 8);
  scheduler->CheckIntegrity();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchCounts(), std::vector<int32_t>{7});
  EXPECT_EQ(scheduler->batch().positions[0], 8);
  Commit();
  EXPECT_EQ(scheduler->result().cached_tokens[0], 8);
  EXPECT_EQ(Drain(), Ids{1});
}

TEST_F(ReceiveTest, LessThanWasMatchedMayArrive) {
  for (const int32_t arrived : {0, 4, 12}) {
    matched[1] = 12;
    Add(1, 15, 2);
    Schedule();
    EXPECT_EQ(Receivers(), Ids{1});
    scheduler->FinishLoad(1, arrived);
    scheduler->CheckIntegrity();
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(BatchCounts(), std::vector<int32_t>{15 - arrived});
    Commit();
    Drain();
    Start(DefaultConfig());  // with an empty prefix cache
  }
}

TEST_F(ReceiveTest, WindowsNeedAllThatWasMatched) {
  SchedulerConfig config = DefaultConfig();
  config.groups = {{GroupKind::kFull, 40, 4, 0, 1}, {GroupKind::kSlidingWindow, 14, 4, 6, 1}};
  Start(config);
  matched[1] = 20;
  Add(1, 30, 2);
  Schedule();
  EXPECT_EQ(Receivers(), Ids{1});
  EXPECT_THROW(scheduler->FinishLoad(1, 16), std::invalid_argument);
  const Blocks held = scheduler->Pin(1, 0, 5);
  EXPECT_EQ(std::count(held[1].begin(), held[1].end(), kNullBlock), 3) << "15 and later are read";
  scheduler->Unpin(1);
  scheduler->FinishLoad(1, 20);
  scheduler->CheckIntegrity();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchCounts(), std::vector<int32_t>{10});
  Commit();
  Drain();
}

TEST_F(ReceiveTest, APartThatArrivedServesOthers) {
  matched[1] = 8;
  Add(1, 15, 3);
  Schedule();
  EXPECT_EQ(Receivers(), Ids{1});
  scheduler->FinishLoad(1, 8);
  std::vector<int32_t> prompt(15);
  std::iota(prompt.begin(), prompt.end(), 1000);
  scheduler->Add({2}, prompt.data(), 15, MaxTokens(2));
  ASSERT_TRUE(Schedule());
  Commit();
  EXPECT_EQ(scheduler->result().cached_tokens[1], 8);
  Drain();
}

TEST_F(ReceiveTest, APreemptedSequenceIsAskedAboutAgain) {
  SchedulerConfig config = DefaultConfig();
  config.groups[0].num_blocks = 9;
  Start(config);
  Add(1, 10, 20);
  Add(2, 10, 20);
  while (scheduler->stats().preemptions == 0) ASSERT_TRUE(Step());
  EXPECT_EQ(Receivers(), Ids{});
  matched[2] = 12;  // two of its output tokens among them
  while (Step() && scheduler->stats().receiving == 0) {
  }
  EXPECT_EQ(Receivers(), Ids{2});
  scheduler->FinishLoad(2, 12);
  EXPECT_EQ(Drain(), Ids{2});
}

TEST_F(ReceiveTest, SiblingsAreNotAskedAbout) {
  matched[1] = matched[2] = 8;
  Add(Ids{1, 2}, 10, MaxTokens(2));
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Receivers(), Ids{});
  Commit();
  Drain();
}

}  // namespace
}  // namespace rtp_llm

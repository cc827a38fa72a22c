// SPDX-License-Identifier: Apache-2.0
// Sequences whose layers keep a state: which block a step reads and which it writes, also in forks,
// after preemption and between workers.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "rtp_llm/cpp/scheduler/recurrent_fixture.h"

namespace rtp_llm {
namespace {

TEST_F(RecurrentTest, StartsFromZerosAndDecodesInPlace) {
  Add(1, 6, 20);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Reads(), Counts{kNullBlock});
  const Counts first = Writes();
  Commit();
  for (int32_t length = 7; length < 20; ++length) {
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(Reads(), first) << length;
    EXPECT_EQ(Writes(), first) << "no snapshots of output are kept, also not at " << length;
    scheduler->CheckIntegrity();
    Commit();
  }
  EXPECT_EQ(Snapshots(), 0);
  Drain();
}

TEST_F(RecurrentTest, APublishedBlockIsNeverWrittenAgain) {
  Add(1, 20, 6);
  ASSERT_TRUE(Schedule());  // 16 tokens
  const int32_t snapshot = Writes()[0];
  EXPECT_FALSE(IsPublished(snapshot)) << "not before it is computed";
  Commit();
  EXPECT_TRUE(IsPublished(snapshot));
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Reads(), Counts{snapshot});
  const int32_t current = Writes()[0];
  EXPECT_NE(current, snapshot);
  scheduler->CheckIntegrity();
  Commit();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Reads(), Counts{current});
  EXPECT_EQ(Writes(), Counts{current}) << "that one is private";
  EXPECT_EQ(scheduler->cache().pool(1).references(Holder::kRequest, snapshot), 0)
      << "only the latest state stays held";
  Commit();
  Drain();
}

TEST_F(RecurrentTest, ForksReadOneStateAndWriteTheirOwn) {
  for (const int32_t length : {6, 8}) {  // within a block, and at its end, where it is published
    Start(Hybrid());
    Add(Ids{1, 2, 3}, length, MaxTokens(5));
    ASSERT_TRUE(Schedule());
    const int32_t prompt = Writes()[0];
    Commit();
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(Reads(), Counts(3, prompt));
    const Counts writes = Writes();
    EXPECT_EQ(std::set<int32_t>(writes.begin(), writes.end()).size(), 3u);
    EXPECT_EQ(std::count(writes.begin(), writes.end(), prompt), 0) << "others read it in this step";
    EXPECT_EQ(scheduler->batch().groups[1].num_copies, 0);
    scheduler->CheckIntegrity();
    Commit();
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(Reads(), writes);
    EXPECT_EQ(Writes(), writes);
    Commit();
    Drain();
  }
}

TEST_F(RecurrentTest, ForksShareATightBudget) {
  Start(Hybrid(2));
  Add(Ids{1, 2, 3}, 9, MaxTokens(12));
  EXPECT_EQ(Drain().size(), 3u);
}

TEST_F(RecurrentTest, APreemptedSequenceGoesOnFromItsSnapshot) {
  SchedulerConfig config = Hybrid();
  config.max_running = 1;
  Start(config);
  Add(1, 20, 30, 3);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Step());
  Add(2, 4, 2, 0);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{2});
  EXPECT_EQ(Reads(), Counts{kNullBlock});
  Commit();
  while (BatchIds() != Ids{1}) {
    Commit();
    ASSERT_TRUE(Schedule());
  }
  EXPECT_EQ(scheduler->batch().positions[0], 16);
  EXPECT_TRUE(IsPublished(Reads()[0]));
  Commit();
  Drain();
}

TEST_F(RecurrentTest, StatesRunOutBeforeOtherBlocksDo) {
  Start(Hybrid(3));
  for (int64_t id = 1; id <= 5; ++id) Add(id, 20, 30);
  EXPECT_EQ(Drain(), (Ids{1, 2, 3, 4, 5}));
  const SchedulerStats stats = scheduler->stats();
  EXPECT_EQ(stats.groups[1].total_blocks, 3);
  EXPECT_EQ(stats.groups[1].free_blocks, 3);
  EXPECT_EQ(stats.groups[0].total_blocks, 100);
}

TEST_F(RecurrentTest, RequestsThatNeedMoreStatesThanThereAreAreRefused) {
  Start(Hybrid(1));
  Add(1, 4, 4);
  EXPECT_THROW(Add(2, 4, 5), std::invalid_argument) << "8 tokens: a snapshot and the next state";
  EXPECT_EQ(Drain(), Ids{1});
}

TEST_F(RecurrentTest, TheStateAfterThePromptIsSent) {
  Add(1, 20, 1);
  ASSERT_TRUE(Schedule());
  EXPECT_TRUE(scheduler->Pin(1, 0, 4)[1].empty()) << "it is not computed in this step";
  EXPECT_THROW(scheduler->Pin(1, 4, 5), std::invalid_argument);
  Commit();
  ASSERT_TRUE(Schedule());
  const auto held = scheduler->Pin(1, 4, 5);
  EXPECT_EQ(held[1], Writes());
  EXPECT_EQ(held[0].size(), 1u);
  Commit();
  EXPECT_EQ(Ended(), Ids{1});
  EXPECT_EQ(scheduler->cache().pool(1).references(Holder::kPin, held[1][0]), 1);
  EXPECT_TRUE(scheduler->Unpin(1));
  Drain();
}

TEST_F(RecurrentTest, AStateThatIsBeingSentIsNotWritten) {
  Add(1, 6, 5);
  ASSERT_TRUE(Schedule());
  const auto held = scheduler->Pin(1, 0, 2);
  EXPECT_EQ(held[1], Writes());
  Commit();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Reads(), held[1]);
  EXPECT_NE(Writes(), held[1]);
  EXPECT_THROW(scheduler->Pin(1, 0, 2), std::invalid_argument) << "that state is gone";
  EXPECT_TRUE(scheduler->Unpin(1));
  Commit();
  Drain();
}

TEST_F(RecurrentTest, AReceivedPromptBringsItsState) {
  AddPrompt(1, Prompt(16, 3, 1));
  Chunks();
  scheduler->SetConnector([](int64_t, int32_t computed) { return 21 - computed; });
  const Tokens prompt = Prompt(16, 5, 2);
  scheduler->Add({2}, prompt.data(), 21, MaxTokens(4));
  EXPECT_FALSE(Schedule());
  const auto receivers = scheduler->TakeReceivers();
  ASSERT_EQ(receivers.size(), 1u);
  EXPECT_EQ(receivers[0].computed, 16);
  EXPECT_TRUE(scheduler->Pin(2, 4, 5)[1].empty());
  const auto held = scheduler->Pin(2, 5, 6);
  ASSERT_EQ(held[1].size(), 1u);
  EXPECT_FALSE(IsPublished(held[1][0])) << "the snapshot that served the prefix stays as it is";
  scheduler->CheckIntegrity();
  scheduler->Unpin(2);
  scheduler->FinishRecv(2, 7, 16);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Reads(), held[1]);
  EXPECT_EQ(Writes(), held[1]);
  Commit();
  Drain();
}

TEST_F(RecurrentTest, AbortInFlightReleasesEverything) {
  SchedulerConfig config = Hybrid();
  config.overlap = true;
  Start(config);
  Add(1, 20, 6);
  Add(Ids{2, 3}, 7, MaxTokens(6));
  ASSERT_TRUE(Schedule());
  ASSERT_TRUE(Schedule());
  scheduler->Abort({1, 2});
  scheduler->CheckIntegrity();
  Commit();
  Commit();
  while (Step() || !scheduler->uncommitted().empty()) {
    while (!scheduler->uncommitted().empty()) Commit();
  }
  EXPECT_FALSE(scheduler->has_work());
  scheduler->CheckIntegrity();
}

}  // namespace
}  // namespace rtp_llm

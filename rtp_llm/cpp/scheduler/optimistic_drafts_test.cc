// SPDX-License-Identifier: Apache-2.0
// Steps that are planned while drafts are in flight, as if all of these were right.

#include <gtest/gtest.h>

#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {
namespace {

using Tokens = std::vector<int32_t>;

class OptimisticDraftsTest : public SchedulerFixture {
 protected:
  void SetUp() override { Restart(101); }
  void Restart(int32_t num_blocks) {
    SchedulerConfig config = DefaultConfig();
    config.groups[0].num_blocks = num_blocks;
    config.overlap = true;
    config.device_drafts = true;
    config.optimistic_drafts = true;
    Start(config);
  }
  // Sequence 1 with a computed prompt of 4 tokens and 5 tokens of output.
  void Begin(RequestOptions options) {
    Add(Ids{1}, 4, options);
    ASSERT_TRUE(Schedule());
    CommitTokens({5});
  }
  // The tokens of sequence 1, alone in its batch.
  void CommitTokens(const Tokens& tokens) {
    scheduler->Commit(tokens.data(), 1, static_cast<int32_t>(tokens.size()));
    scheduler->CheckIntegrity();
  }
  const Batch& batch() { return scheduler->batch(); }
  static Tokens Part(const HostArray<int32_t>& array, int32_t begin, int32_t end) {
    return Tokens(array.data() + begin, array.data() + end);
  }
  int64_t FreeBlocks() { return scheduler->stats().free_blocks; }
};

TEST_F(OptimisticDraftsTest, TheNextStepTakesDraftsInFlightForRight) {
  Begin(MaxTokens(50));
  ASSERT_TRUE(Schedule({{1, {-1, -1, -1}}}));
  EXPECT_EQ(Part(batch().positions, 0, 4), (Tokens{4, 5, 6, 7}));
  ASSERT_TRUE(Schedule({{1, {-1, -1}}}));
  const int32_t draft = -1 - scheduler->config().max_rows();
  EXPECT_EQ(Part(batch().token_ids, 0, 3), (Tokens{-4, draft, draft - 1}))
      << "the row after all drafts";
  EXPECT_EQ(Part(batch().positions, 0, 3), (Tokens{8, 9, 10}));
  EXPECT_EQ(batch().seq_lens[0], 11);
  EXPECT_EQ(batch().max_seqlen_k, 11);
  EXPECT_EQ(batch().row_steps[0], 5);
  EXPECT_EQ(batch().previous_tokens[0], -4) << "what row 3 continues from";
  EXPECT_EQ(scheduler->uncommitted(), (Tokens{1, 1}));
}

TEST_F(OptimisticDraftsTest, TheTokenBeforeAPendingOneIsKnownWithoutDrafts) {
  Begin(MaxTokens(50));
  ASSERT_TRUE(Schedule());
  ASSERT_TRUE(Schedule({{1, {-1}}}));
  EXPECT_EQ(Part(batch().token_ids, 0, 1), Tokens{-1});
  EXPECT_EQ(batch().previous_tokens[0], 5);
}

// However many drafts are right in the two steps, the third one begins after the first one's
// tokens.
TEST_F(OptimisticDraftsTest, ACommitCorrectsTheLength) {
  for (int32_t first = 0; first <= 3; ++first) {
    for (int32_t second = 0; second <= 2; ++second) {
      Restart(101);
      Begin(MaxTokens(50));
      ASSERT_TRUE(Schedule({{1, {-1, -1, -1}}}));
      ASSERT_TRUE(Schedule({{1, {-1, -1}}}));
      CommitTokens(Tokens(1 + first, 6));
      ASSERT_TRUE(Schedule());
      const int32_t length = 5 + 1 + first;  // known
      EXPECT_EQ(batch().positions[0], length + 2) << "the second step's two drafts are in flight";
      EXPECT_EQ(batch().token_ids[0], -3);
      CommitTokens(Tokens(1 + second, 7));
      ASSERT_TRUE(Schedule({{1, {-1}}}));
      EXPECT_EQ(batch().positions[0], length + 1 + second);
      EXPECT_EQ(batch().token_ids[0], -1) << "the third step has one row";
      CommitTokens({8});
      CommitTokens({9});
      ASSERT_TRUE(Schedule());
      EXPECT_EQ(batch().positions[0], length + 1 + second + 1);
      EXPECT_EQ(batch().token_ids[0], 9) << "known";
      EXPECT_EQ(batch().row_steps[0], 1 + 1 + first + 1 + second + 2);
      CommitTokens({3});
    }
  }
}

TEST_F(OptimisticDraftsTest, AStepIsLeftOutWhereAllRightDraftsWouldBeTheLast) {
  Begin(MaxTokens(6));
  ASSERT_TRUE(Schedule({{1, {-1, -1, -1, -1, -1}}}));
  EXPECT_EQ(BatchCounts(), Tokens{5}) << "five more, the last of which is never computed";
  EXPECT_FALSE(Schedule({{1, {-1}}})) << "it has as many as it may have, if all are right";
  CommitTokens({6, 7});
  ASSERT_TRUE(Schedule({{1, {-1, -1, -1}}})) << "they were not";
  EXPECT_EQ(batch().positions[0], 6);
  EXPECT_EQ(BatchCounts(), Tokens{3});
  EXPECT_FALSE(Schedule());
  CommitTokens({8, 9, 10});
  EXPECT_EQ(Ended(), Ids{1});
}

TEST_F(OptimisticDraftsTest, WhatTheDeviceCannotCorrectWaits) {
  RequestOptions with_history = MaxTokens(50);
  with_history.needs_history = true;
  RequestOptions alone = MaxTokens(50);
  alone.overlap = false;
  RequestOptions early = MaxTokens(50);
  early.min_tokens = 4;
  for (const RequestOptions& options : {with_history, alone, early}) {
    Restart(101);
    Begin(options);
    ASSERT_TRUE(Schedule({{1, {-1, -1, -1}}}));
    EXPECT_FALSE(Schedule({{1, {-1}}}));
    CommitTokens({6, 7});
    ASSERT_TRUE(Schedule({{1, {-1, -1, -1}}}));
    EXPECT_EQ(batch().positions[0], 6);
    CommitTokens({6, 7});
    ASSERT_TRUE(Schedule({{1, {-1}}}));
    EXPECT_EQ(Schedule({{1, {-1}}}), options.min_tokens > 0)
        << "five tokens are enough, whatever is right";
  }
}

TEST_F(OptimisticDraftsTest, ASequenceThatEndedHasADeadRow) {
  RequestOptions options = MaxTokens(50);
  options.stop_token_ids = {8};
  Begin(options);
  ASSERT_TRUE(Schedule({{1, {-1, -1, -1}}}));
  ASSERT_TRUE(Schedule({{1, {-1, -1, -1}}}));
  CommitTokens({6, 8, 9});
  EXPECT_EQ(Ended(), Ids{1});
  EXPECT_EQ(scheduler->result().num_tokens[0], 2);
  CommitTokens({6, 7, 9, 9});
  EXPECT_EQ(scheduler->result().num_tokens[0], 0);
  EXPECT_TRUE(Drain().empty());
}

TEST_F(OptimisticDraftsTest, BlocksAreKeptForTheStepInFlightOnly) {
  Begin(MaxTokens(50));
  const int64_t before = FreeBlocks() + 1;  // without the one of the prompt
  ASSERT_TRUE(Schedule({{1, {-1, -1, -1, -1, -1, -1, -1}}}));
  EXPECT_EQ(FreeBlocks(), before - 3);
  ASSERT_TRUE(Schedule({{1, {-1, -1, -1, -1, -1, -1, -1}}}));
  EXPECT_EQ(FreeBlocks(), before - 5) << "20 tokens";
  CommitTokens({6});
  EXPECT_EQ(FreeBlocks(), before - 5) << "the second step may write to them";
  CommitTokens({7});
  EXPECT_EQ(FreeBlocks(), before - 2) << "6 tokens are computed";
}

TEST_F(OptimisticDraftsTest, NobodyIsPreemptedForAnAssumedLength) {
  Restart(5);  // 16 tokens
  Add(1, 4, 6);
  Add(2, 5, 3);
  ASSERT_TRUE(Schedule());
  Commit(5);
  ASSERT_TRUE(Schedule({{1, {-1, -1, -1}}}));
  EXPECT_EQ(BatchIds(), (Ids{2, 1}));
  EXPECT_EQ(BatchCounts(), (Tokens{1, 4}));
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{2}) << "no block is left for the other one, if its drafts are right";
  Commit(7);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{1}) << "they were not";
  EXPECT_EQ(batch().positions[0], 5);
  Commit(7);
  EXPECT_EQ(Ended(), Ids{2});
  Commit(7);
  EXPECT_EQ(Drain(), Ids{1});
  EXPECT_EQ(scheduler->stats().preemptions, 0);
}

TEST_F(OptimisticDraftsTest, OnlyWhatWasRightIsPublished) {
  Begin(MaxTokens(50));
  ASSERT_TRUE(Schedule({{1, {-1, -1, -1, -1, -1, -1, -1}}}));
  ASSERT_TRUE(Schedule({{1, {-1, -1, -1}}}));
  CommitTokens({6, 7, 8, 40});
  ASSERT_TRUE(Schedule());
  CommitTokens({9, 10});
  scheduler->Abort({1});
  Commit();
  const Tokens prompt = {1000, 1001, 1002, 1003, 5, 6, 7, 8, 40, 9, 10, 11, 12, 13, 14, 15};
  scheduler->Add({2}, prompt.data(), 16, MaxTokens(1));
  ASSERT_TRUE(Schedule());
  CommitTokens({1});
  EXPECT_EQ(scheduler->result().cached_tokens[0], 8);
}

}  // namespace
}  // namespace rtp_llm

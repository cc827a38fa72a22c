// SPDX-License-Identifier: Apache-2.0
// Rows without a token to sample: NaN in the logits, or every token forbidden.

#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {
namespace {

constexpr int32_t kBroken = kNotFiniteRow;

class ErrorsTest : public SchedulerFixture {
 protected:
  // A prompt that begins like all others: the first `length` of the numbers from 0 on.
  void AddCounting(int64_t id, int32_t length, int32_t max_tokens = 4) {
    std::vector<int32_t> prompt(length);
    std::iota(prompt.begin(), prompt.end(), 0);
    scheduler->Add({id}, prompt.data(), length, MaxTokens(max_tokens));
  }

  // Tokens of such a prompt that the prefix cache serves. The sequence is aborted at once.
  int32_t Cached(int32_t length) {
    AddCounting(kProbe, length, 1);
    EXPECT_TRUE(Schedule());
    const Batch& batch = scheduler->batch();
    int32_t cached = -1;
    for (int32_t i = 0; i < batch.num_seqs; ++i) {
      if (batch.seq_ids[i] == kProbe) cached = batch.positions[batch.cu_seqlens_q[i]];
    }
    scheduler->Abort({kProbe});
    Commit(kBroken);  // also of a row that is dead
    return cached;
  }

  FinishReason FinishOf(int64_t id) {
    const StepResult& result = scheduler->result();
    for (int32_t row = 0; row < result.num_rows; ++row) {
      if (result.ids[row] == id) return static_cast<FinishReason>(result.finish[row]);
    }
    return FinishReason::kNone;
  }

  void CommitRows(const std::vector<int32_t>& tokens) {
    scheduler->Commit(tokens.data(), static_cast<int32_t>(tokens.size()), 1);
  }

  static constexpr int64_t kProbe = 99;
};

TEST_F(ErrorsTest, ARowEndsAloneAndPublishesNothing) {
  Add(1, 5, 4);
  Add(2, 5, 4);
  Add(3, 5, 4);
  ASSERT_TRUE(Schedule());
  CommitRows({7, kBroken, kAllBannedRow});
  EXPECT_EQ(FinishOf(1), FinishReason::kNone);
  EXPECT_EQ(FinishOf(2), FinishReason::kNotFinite);
  EXPECT_EQ(FinishOf(3), FinishReason::kAllBanned);
  const StepResult& result = scheduler->result();
  for (const int32_t row : {1, 2}) {
    EXPECT_EQ(result.num_tokens[row], 0);
    EXPECT_EQ(result.tokens[row], -1);
  }
  scheduler->CheckIntegrity();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{1});
  Commit();
  EXPECT_EQ(Drain(), Ids{1});
}

TEST_F(ErrorsTest, OneOfSeveralSequencesOfAPromptEndsAlone) {
  Add(Ids{1, 2, 3}, 9, MaxTokens(3));
  ASSERT_TRUE(Schedule());
  CommitRows({kBroken, 5, 6});  // the leader
  EXPECT_EQ(Ended(), Ids{1});
  EXPECT_EQ(Drain(), (Ids{2, 3}));
}

TEST_F(ErrorsTest, ErrorsAfterAcceptedTokensEndTheRowThere) {
  Add(1, 5, 8);
  ASSERT_TRUE(Step());
  ASSERT_TRUE(Schedule({{1, {4, 5}}}));
  const std::vector<int32_t> tokens = {4, kBroken, 5};
  scheduler->Commit(tokens.data(), 1, 3);
  EXPECT_EQ(scheduler->result().num_tokens[0], 1);
  EXPECT_EQ(FinishOf(1), FinishReason::kNotFinite);
  Drain();
}

TEST_F(ErrorsTest, OtherNegativeTokensAreRefused) {
  Add(1, 5, 4);
  ASSERT_TRUE(Schedule());
  EXPECT_THROW(CommitRows({-1}), std::invalid_argument);
  EXPECT_THROW(CommitRows({-4}), std::invalid_argument);
  Commit();
  Drain();
}

TEST_F(ErrorsTest, BlocksThatGaveNaNLeaveThePrefixCache) {
  AddCounting(1, 16);
  ASSERT_TRUE(Step(kBroken));
  EXPECT_EQ(FinishOf(1), FinishReason::kNotFinite);
  EXPECT_EQ(Cached(16), 0);
  Drain();
}

TEST_F(ErrorsTest, BannedTokensSayNothingAboutBlocks) {
  AddCounting(1, 16);
  ASSERT_TRUE(Step(kAllBannedRow));
  EXPECT_EQ(Cached(16), 12);
  Drain();
}

TEST_F(ErrorsTest, WithOverlapTooAndWhatWasWrittenSinceGoesWithThem) {
  SchedulerConfig config = DefaultConfig();
  config.overlap = true;
  Start(config);
  AddCounting(1, 16);
  ASSERT_TRUE(Schedule());
  ASSERT_TRUE(Schedule());  // the next step computes a token that must not be published
  Commit(kBroken);
  EXPECT_EQ(Ended(), Ids{1});
  Commit();
  EXPECT_EQ(scheduler->result().num_tokens[0], 0);
  EXPECT_EQ(Cached(16), 0);
  Drain();
}

TEST_F(ErrorsTest, ChunksThatWerePublishedBeforeGoToo) {
  SchedulerConfig config = DefaultConfig();
  config.max_batch_tokens = 8;
  Start(config);
  AddCounting(1, 20);
  ASSERT_TRUE(Step() && Step());  // two chunks, no row
  ASSERT_TRUE(Step(kBroken));
  EXPECT_EQ(Cached(8), 0);
  Drain();
}

TEST_F(ErrorsTest, WhatGaveFiniteLogitsBeforeStaysUntilNaNComesFromItTwice) {
  AddCounting(1, 16, 1);
  ASSERT_TRUE(Step());
  AddCounting(2, 32, 4);
  ASSERT_TRUE(Step(kBroken));
  EXPECT_EQ(Cached(32), 16);  // computed by the first one, and fine
  AddCounting(3, 16, 1);
  ASSERT_TRUE(Step());  // says so again
  AddCounting(4, 32, 4);
  ASSERT_TRUE(Step(kBroken));
  AddCounting(5, 32, 4);
  ASSERT_TRUE(Step(kBroken));  // not verified since: it may be what breaks the others
  EXPECT_EQ(Cached(32), 0);
  Drain();
}

TEST_F(ErrorsTest, BlocksOfWindowsProveNothing) {
  SchedulerConfig config = DefaultConfig();
  config.groups = {{GroupKind::kFull, 101, 4, 0, 1}, {GroupKind::kSlidingWindow, 101, 4, 6, 1}};
  Start(config);
  AddCounting(1, 16, 1);
  ASSERT_TRUE(Step());
  AddCounting(2, 32, 4);
  ASSERT_TRUE(Step(kBroken));
  EXPECT_EQ(Cached(32), 0);
  Drain();
}

TEST_F(ErrorsTest, LiveSequencesDoNotMakeThemKnownAgain) {
  SchedulerConfig config = DefaultConfig();
  config.max_batch_tokens = 16;
  config.overlap = true;
  Start(config);
  AddCounting(1, 16);
  ASSERT_TRUE(Schedule());
  AddCounting(2, 60);  // takes the blocks of the first one, whose row is not committed
  ASSERT_TRUE(Schedule());
  Commit(kBroken);
  ASSERT_EQ(Ended(), Ids{1});
  for (int32_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(Schedule());
    Commit();
  }
  scheduler->CheckIntegrity();
  scheduler->Abort({2});
  Commit();
  EXPECT_EQ(Cached(60), 0);
  Drain();
}

TEST_F(ErrorsTest, APreemptedSequenceDoesNotTakeThemUpAgain) {
  SchedulerConfig config = DefaultConfig();
  config.groups = {{GroupKind::kFull, 8, 4, 0, 1}};
  config.max_model_len = 32;
  Start(config);
  for (const int64_t id : {1, 2, 3}) AddCounting(id, 14, 14);
  const auto commit = [this](int64_t id, int32_t token) {
    std::vector<int32_t> tokens;
    for (const int64_t row : RowIds()) tokens.push_back(row <= id ? token : 6 + row);
    CommitRows(tokens);
  };
  ASSERT_TRUE(Schedule());
  while (scheduler->stats().preemptions == 0) {
    commit(0, 0);
    ASSERT_TRUE(Schedule());
  }
  ASSERT_EQ(RowIds(), (Ids{1, 2}));
  commit(2, kBroken);  // both: what they share with the third one is not trusted any more
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{3});
  EXPECT_EQ(scheduler->batch().positions[0], 0);
  Commit();
  Drain();
}

}  // namespace
}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
// Sequences that end with their prompt: no token is sampled for them.

#include <gtest/gtest.h>

#include <stdexcept>

#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {
namespace {

class PromptOnlyTest : public SchedulerFixture {
 protected:
  void Restart(bool overlap, int32_t stages = 1) {
    SchedulerConfig config = DefaultConfig();
    config.max_draft_tokens = 0;
    config.overlap = overlap;
    config.stages = stages;
    Start(config);
  }
  // A prompt that begins like all others: the first `length` of the numbers from 0 on.
  void AddPrompt(int64_t id, int32_t length, int32_t priority = 0) {
    std::vector<int32_t> prompt(length);
    std::iota(prompt.begin(), prompt.end(), 0);
    RequestOptions options;
    options.prompt_only = true;
    options.priority = priority;
    scheduler->Add({id}, prompt.data(), length, options);
  }
  FinishReason FinishOf(int64_t id) {
    const StepResult& result = scheduler->result();
    for (int32_t row = 0; row < result.num_rows; ++row) {
      if (result.ids[row] == id) return static_cast<FinishReason>(result.finish[row]);
    }
    return FinishReason::kNone;
  }
};

TEST_F(PromptOnlyTest, OneStepWithoutARowOfLogits) {
  AddPrompt(1, 7);
  Add(2, 5, 3);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), (Ids{1, 2}));
  EXPECT_EQ(RowIds(), Ids{2});
  EXPECT_EQ(scheduler->uncommitted(), std::vector<int32_t>{1});
  Commit();
  EXPECT_EQ(FinishOf(1), FinishReason::kPrompt);
  const StepResult& result = scheduler->result();
  ASSERT_EQ(result.num_rows, 2);
  EXPECT_EQ(result.ids[1], 1);
  EXPECT_EQ(result.num_tokens[1], 0);
  EXPECT_EQ(result.tokens[1], -1);
  EXPECT_EQ(Drain(), Ids{2});
}

TEST_F(PromptOnlyTest, APromptMayBeAsLongAsTheModelAllows) {
  EXPECT_THROW(Add(9, 200, 1), std::invalid_argument) << "no room for a token";
  AddPrompt(1, 200);
  EXPECT_EQ(Drain(), Ids{1});
  EXPECT_THROW(AddPrompt(2, 201), std::invalid_argument);
}

TEST_F(PromptOnlyTest, ChunksEndWithTheLastOne) {
  AddPrompt(1, 70);
  for (const int32_t count : {32, 32, 6}) {
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(BatchCounts(), std::vector<int32_t>{count});
    EXPECT_EQ(scheduler->batch().num_rows, 0);
    EXPECT_EQ(Ended(), Ids{});
    Commit();
  }
  EXPECT_EQ(Ended(), Ids{1});
  EXPECT_FALSE(scheduler->has_work());
}

TEST_F(PromptOnlyTest, ItsBlocksServeOthers) {
  AddPrompt(1, 21);
  EXPECT_EQ(Drain(), Ids{1});
  AddPrompt(2, 21);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchCounts(), std::vector<int32_t>{1});
  Commit();
  EXPECT_EQ(scheduler->result().cached_tokens[0], 20);
}

TEST_F(PromptOnlyTest, BlocksThatGaveNanServeNobody) {
  AddPrompt(1, 21);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(scheduler->Abort({1}, /*not_finite=*/true), 1);
  Commit();
  EXPECT_EQ(FinishOf(1), FinishReason::kNone);
  AddPrompt(2, 21);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchCounts(), std::vector<int32_t>{21});
  Commit();
  EXPECT_EQ(Drain(), Ids{});
}

TEST_F(PromptOnlyTest, NoStepIsComputedInVainWhileItsLastOneIsInFlight) {
  Restart(/*overlap=*/true);
  AddPrompt(1, 7);
  ASSERT_TRUE(Schedule());
  EXPECT_FALSE(Schedule()) << "it is computed";
  scheduler->CheckIntegrity();
  Commit();
  EXPECT_EQ(Ended(), Ids{1});
  AddPrompt(2, 40);
  Add(3, 3, 4);
  ASSERT_TRUE(Schedule());
  ASSERT_TRUE(Schedule());
  Commit();
  EXPECT_EQ(Ended(), Ids{});
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{3});
  scheduler->CheckIntegrity();
  Commit();
  EXPECT_EQ(Ended(), Ids{2});
  Commit();
  EXPECT_EQ(Drain(), Ids{3});
}

TEST_F(PromptOnlyTest, AbortedInFlight) {
  Restart(/*overlap=*/true);
  AddPrompt(1, 7);
  AddPrompt(2, 9);
  ASSERT_TRUE(Schedule());
  EXPECT_FALSE(Schedule());
  scheduler->Abort({1});
  Commit();
  EXPECT_EQ(Ended(), Ids{2});
  EXPECT_EQ(scheduler->result().num_rows, 2);
  EXPECT_EQ(Drain(), Ids{});
}

TEST_F(PromptOnlyTest, OneThatIsPreemptedInFlightEndsAllTheSame) {
  SchedulerConfig config = DefaultConfig();
  config.groups = {{GroupKind::kFull, 11, 4, 0, 1}};
  config.overlap = true;
  Start(config);
  AddPrompt(1, 30, /*priority=*/5);
  ASSERT_TRUE(Schedule());
  Add(2, 28, 4, /*priority=*/-5);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{2});
  EXPECT_EQ(scheduler->stats().preemptions, 1);
  scheduler->CheckIntegrity();
  Commit();
  EXPECT_EQ(Ended(), Ids{1});
  Commit();
  EXPECT_EQ(Drain(), Ids{2});
}

TEST_F(PromptOnlyTest, InAPipeline) {
  Restart(/*overlap=*/false, /*stages=*/3);
  AddPrompt(1, 80);
  ASSERT_TRUE(Schedule());
  ASSERT_TRUE(Schedule());
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchCounts(), std::vector<int32_t>{16});
  Commit();
  EXPECT_FALSE(Schedule());
  Commit();
  EXPECT_EQ(Ended(), Ids{});
  Commit();
  EXPECT_EQ(Ended(), Ids{1});
  EXPECT_EQ(Drain(), Ids{});
}

TEST_F(PromptOnlyTest, IsForOneSequenceAndTakesNoToken) {
  RequestOptions options;
  options.prompt_only = true;
  EXPECT_THROW(Add(Ids{1, 2}, 5, options), std::invalid_argument);
  scheduler->SetConnector([](int64_t, int32_t computed) { return 5 - computed; });
  Add(Ids{1}, 5, options);
  EXPECT_FALSE(Schedule());
  EXPECT_EQ(scheduler->TakeReceivers().size(), 1u);
  EXPECT_THROW(scheduler->FinishRecv(1, 7, 0), std::invalid_argument);
  scheduler->FinishLoad(1, 4);
  ASSERT_TRUE(Step());
  EXPECT_EQ(Ended(), Ids{1});
}

}  // namespace
}  // namespace rtp_llm

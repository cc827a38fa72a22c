// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/scheduler/planner.h"

#include <gtest/gtest.h>

#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {
namespace {

class PlannerTest : public SchedulerFixture {
 protected:
  using Counts = std::vector<int32_t>;
};

TEST_F(PlannerTest, PromptsAreCutIntoChunksOfTheBudget) {
  Add(1, 70, 3);
  for (const int32_t count : {32, 32, 6}) {
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(BatchCounts(), Counts{count});
    EXPECT_EQ(scheduler->batch().num_rows, count == 6 ? 1 : 0);
    Commit();
  }
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchCounts(), Counts{1});
}

TEST_F(PlannerTest, DecodesComeFirstAndPromptsGetTheRestInOrder) {
  Add(1, 4, 50);
  Add(2, 5, 50);
  ASSERT_TRUE(Step());
  Add(3, 20, 50);
  Add(4, 20, 50);
  Add(5, 20, 50);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), (Ids{1, 2, 3, 4}));
  EXPECT_EQ(BatchCounts(), (Counts{1, 1, 20, 10}));
  EXPECT_EQ(RowIds(), (Ids{1, 2, 3}));
  Commit();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), (Ids{1, 2, 3, 4, 5}));
  EXPECT_EQ(BatchCounts(), (Counts{1, 1, 1, 10, 19}));
}

TEST_F(PlannerTest, ABudgetBelowTheDecodesStillEndsEveryRequest) {
  SchedulerConfig config = DefaultConfig();
  config.max_batch_tokens = 3;
  Start(config);
  for (int64_t id = 1; id <= 6; ++id) Add(id, 2, 20);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(Schedule());
    ASSERT_LE(scheduler->batch().num_tokens, 3);
    Commit();
  }
  EXPECT_EQ(Drain().size(), 6u);
}

TEST_F(PlannerTest, PlacesAreLimited) {
  for (int64_t id = 1; id <= 12; ++id) Add(id, 2, 5);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), (Ids{1, 2, 3, 4, 5, 6, 7, 8}));
  Commit();
  EXPECT_EQ(scheduler->stats().running, 8);
  EXPECT_EQ(scheduler->stats().waiting, 4);
  EXPECT_EQ(Drain(), (Ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
}

TEST_F(PlannerTest, FirstComeFirstServedWithinAPriorityLowerValuesFirst) {
  SchedulerConfig config = DefaultConfig();
  config.max_running = 1;
  Start(config);
  Add(1, 2, 2, 5);
  Add(2, 2, 2, 0);
  Add(3, 2, 2, 5);
  Add(4, 2, 2, -5);
  Add(5, 2, 2, 0);
  EXPECT_EQ(Drain(), (Ids{4, 2, 5, 1, 3}));
}

TEST_F(PlannerTest, NobodyStarvesBecauseOfMoreUrgentOnes) {
  SchedulerConfig config = DefaultConfig();
  config.max_running = 1;
  config.aging_steps = 20;
  Start(config);
  Add(1, 2, 3, 2);
  int64_t next = 100;
  for (int step = 0; step < 100; ++step) {
    while (scheduler->stats().waiting < 4) Add(next++, 2, 3, 0);
    ASSERT_TRUE(Step());
    for (const int64_t id : Ended()) {
      if (id != 1) continue;
      EXPECT_GT(step, 35) << "two levels are worth 40 steps";
      EXPECT_LT(step, 60);
      return;
    }
  }
  FAIL() << "starved";
}

TEST_F(PlannerTest, PrioritiesBeyondTheLimitCountAsTheLimit) {
  SchedulerConfig config = DefaultConfig();
  config.max_running = 1;
  Start(config);
  Add(1, 2, 2, 100);
  Add(2, 2, 2, 2'000'000'000);
  Add(3, 2, 2, -2'000'000'000);
  EXPECT_EQ(Drain(), (Ids{3, 1, 2}));
}

// A long prompt that does not fit yet is not overtaken by short ones that would.
TEST_F(PlannerTest, TheHeadOfTheQueueIsNeverSkipped) {
  SchedulerConfig config = DefaultConfig();
  config.groups[0].num_blocks = 61;
  Start(config);
  Add(1, 100, 30);
  ASSERT_TRUE(Step());
  Add(2, 190, 5);
  for (int64_t id = 3; id <= 6; ++id) Add(id, 2, 2);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(Schedule());
    ASSERT_EQ(BatchIds(), Ids{1}) << "step " << i;
    ASSERT_GT(scheduler->cache().AvailableBlocks(0), 10);
    Commit();
  }
  EXPECT_EQ(Drain(), (Ids{1, 3, 4, 5, 6, 2}))
      << "the short ones end first, while the long one runs";
  EXPECT_EQ(scheduler->stats().preemptions, 0) << "admission waits rather than preempt later";
}

TEST_F(PlannerTest, AdmissionLeavesRoomForPromptsThatAreStillBeingComputed) {
  SchedulerConfig config = DefaultConfig();
  config.groups[0].num_blocks = 31;
  Start(config);
  Add(1, 80, 4);  // 20 of 30 blocks, in three steps
  Add(2, 48, 4);  // 12 blocks: does not fit as well
  ASSERT_TRUE(Step());
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{1});
  Commit();
  EXPECT_EQ(Drain(), (Ids{1, 2}));
  EXPECT_EQ(scheduler->stats().preemptions, 0);
}

TEST_F(PlannerTest, TheLatestOfTheLowestPriorityIsPreemptedAndComputedAgain) {
  SchedulerConfig config = DefaultConfig();
  config.groups[0].num_blocks = 25;
  Start(config);
  Add(1, 20, 40, 1);
  Add(2, 20, 40, 0);
  Add(3, 20, 40, 1);
  EXPECT_EQ(Drain(), (Ids{2, 1, 3}));
  const SchedulerStats stats = scheduler->stats();
  EXPECT_GE(stats.preemptions, 1);
  EXPECT_EQ(stats.prefix_hit_tokens, 0) << "a sequence's own blocks are no hit";
}

TEST_F(PlannerTest, PreemptionKeepsOutputAndPosition) {
  SchedulerConfig config = DefaultConfig();
  config.groups[0].num_blocks = 14;
  config.prefix_cache = false;
  Start(config);
  Add(1, 12, 30);
  Add(2, 12, 30);
  std::vector<int32_t> outputs(3);
  while (Schedule()) {
    const Batch& batch = scheduler->batch();
    for (int32_t row = 0; row < batch.num_rows; ++row) {
      ASSERT_EQ(batch.row_steps[row], outputs[batch.row_ids[row]]++);
    }
    Commit();
    scheduler->CheckIntegrity();
  }
  EXPECT_EQ(outputs, (std::vector<int32_t>{0, 30, 30}));
  EXPECT_GT(scheduler->stats().preemptions, 0);
}

TEST_F(PlannerTest, TheLastSitsOutRatherThanPreemptItself) {
  SchedulerConfig config = DefaultConfig();
  config.groups[0].num_blocks = 9;
  config.prefix_cache = false;
  Start(config);
  Add(1, 12, 4);  // 3 blocks, a fourth with the second token
  Add(2, 16, 9);  // 4 blocks, a fifth with the second token: there are 8
  for (const Ids& expected : {Ids{1, 2}, Ids{1}, Ids{1}, Ids{1}, Ids{2}}) {
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(BatchIds(), expected);
    Commit();
  }
  EXPECT_EQ(Drain(), Ids{2});
  EXPECT_EQ(scheduler->stats().preemptions, 0);
}

TEST_F(PlannerTest, AnUrgentRequestPreemptsLessUrgentOnes) {
  SchedulerConfig config = DefaultConfig();
  config.max_running = 2;
  Start(config);
  Add(1, 4, 60, 3);
  Add(2, 4, 60, 2);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Step());
  Add(3, 4, 5, 0);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), (Ids{2, 3})) << "the least urgent one gave its place";
  Commit();
  scheduler->CheckIntegrity();
  EXPECT_EQ(scheduler->stats().preemptions, 1);
  EXPECT_EQ(Drain(), (Ids{3, 2, 1}));
}

TEST_F(PlannerTest, CopiesOfAPreemptedForkAreDropped) {
  SchedulerConfig config = DefaultConfig();
  config.max_running = 3;
  Start(config);
  Add(Ids{1, 2, 3}, 6, MaxTokens(10, 3));
  ASSERT_TRUE(Step());
  Add(Ids{4, 5}, 6, MaxTokens(10, 0));
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), (Ids{1, 4})) << "numbers 2 and 3 gave their places";
  EXPECT_EQ(scheduler->batch().groups[0].num_copies, 1) << "that of number 1; number 2 had one too";
  Commit();
  scheduler->CheckIntegrity();
  EXPECT_EQ(Drain().size(), 5u);
}

TEST_F(PlannerTest, AnUrgentRequestDoesNotPreemptInVain) {
  SchedulerConfig config = DefaultConfig();
  config.groups[0].num_blocks = 31;
  Start(config);
  Add(1, 60, 50, 0);
  Add(2, 8, 50, 3);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Step());
  Add(3, 100, 5, 0);  // needs more than number 2 could give
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Step());
  EXPECT_EQ(scheduler->stats().preemptions, 0);
  EXPECT_EQ(scheduler->stats().running, 2);
  EXPECT_EQ(Drain().size(), 3u);
}

TEST_F(PlannerTest, SharedBlocksOfLessUrgentOnesDoNotCountAsFreed) {
  SchedulerConfig config = DefaultConfig();
  config.groups[0].num_blocks = 31;
  Start(config);
  std::vector<int32_t> prompt(40);
  std::iota(prompt.begin(), prompt.end(), 500);
  scheduler->Add({1}, prompt.data(), 40, MaxTokens(50, 0));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Step());
  scheduler->Add({2}, prompt.data(), 40, MaxTokens(50, 3));
  ASSERT_TRUE(Step());
  EXPECT_EQ(scheduler->result().cached_tokens[1], 36) << "nine of its blocks are number 1's";
  Add(3, 88, 5, 0);  // needs more than number 2 alone could give
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Step());
  EXPECT_EQ(scheduler->stats().preemptions, 0);
  EXPECT_EQ(scheduler->stats().running, 2);
  EXPECT_EQ(Drain().size(), 3u);
}

TEST_F(PlannerTest, BlocksThatOnlyLessUrgentOnesShareCountAsFreed) {
  SchedulerConfig config = DefaultConfig();
  config.groups[0].num_blocks = 31;
  Start(config);
  std::vector<int32_t> prompt(80);
  std::iota(prompt.begin(), prompt.end(), 500);
  for (const int64_t id : {1, 2}) {
    scheduler->Add({id}, prompt.data(), 80, MaxTokens(20, 3));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(Step());
  }
  Add(3, 88, 5, 0);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{3});
  Commit();
  EXPECT_EQ(scheduler->stats().preemptions, 2);
  EXPECT_EQ(Drain().size(), 3u);
}

TEST_F(PlannerTest, EqualPriorityNeverPreemptsForAdmission) {
  SchedulerConfig config = DefaultConfig();
  config.max_running = 1;
  Start(config);
  Add(1, 4, 20, 1);
  ASSERT_TRUE(Step());
  Add(2, 4, 20, 1);
  EXPECT_EQ(Drain(), (Ids{1, 2}));
  EXPECT_EQ(scheduler->stats().preemptions, 0);
}

// The chunk shrinks to the blocks that are left, so that a window group smaller than one chunk
// works.
TEST_F(PlannerTest, ChunksShrinkToWhatFits) {
  SchedulerConfig config = DefaultConfig();
  config.groups = {{GroupKind::kSlidingWindow, 5, 4, 6, 1}};
  Start(config);
  Add(1, 100, 5);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchCounts(), Counts{16});
  Commit();
  EXPECT_EQ(Drain(), Ids{1});
}

TEST_F(PlannerTest, PinnedBlocksMakeRequestsWait) {
  SchedulerConfig config = DefaultConfig();
  config.groups[0].num_blocks = 7;
  config.prefix_cache = false;
  Start(config);
  int32_t pinned[6];
  BlockPool& pool = scheduler->cache().pool(0);
  ASSERT_TRUE(pool.Allocate(6, pinned));
  Add(1, 20, 4);
  EXPECT_FALSE(Schedule());
  pool.Release(Holder::kRequest, pinned, 6);
  EXPECT_EQ(Drain(), Ids{1});
}

}  // namespace
}  // namespace rtp_llm

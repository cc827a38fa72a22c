// SPDX-License-Identifier: Apache-2.0
// As many batches in flight as a pipeline has stages.

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {
namespace {

class PipelineTest : public SchedulerFixture {
 protected:
  void SetUp() override { Restart(2); }

  void Restart(int32_t stages) {
    SchedulerConfig config = DefaultConfig();
    config.max_draft_tokens = 0;
    config.stages = stages;
    Start(config);
  }
};

TEST_F(PipelineTest, ThoseThatDecodeAreDividedAmongTheBatches) {
  for (int64_t id = 1; id <= 5; ++id) Add(id, 4, 9);
  ASSERT_TRUE(Schedule());  // their prompts, together
  EXPECT_EQ(BatchIds().size(), 5u);
  EXPECT_FALSE(Schedule()) << "all of their tokens are pending";
  Commit();
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(BatchIds(), (Ids{1, 2, 3}));
    if (round > 0) Commit();
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(BatchIds(), (Ids{4, 5}));
    EXPECT_EQ(scheduler->uncommitted(), (std::vector<int32_t>{3, 2}));
    EXPECT_THROW(Schedule(), std::logic_error);
    scheduler->CheckIntegrity();
    Commit();
  }
}

TEST_F(PipelineTest, ChunksOfAPromptFollowEachOther) {
  Restart(3);
  Add(1, 90, 2);
  for (int chunk = 0; chunk < 3; ++chunk) {
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(scheduler->batch().positions[0], chunk * 32);
  }
  EXPECT_EQ(scheduler->uncommitted(), (std::vector<int32_t>{0, 0, 1}));
  Commit();
  EXPECT_FALSE(Schedule());
  EXPECT_EQ(scheduler->uncommitted(), (std::vector<int32_t>{0, 1}));
  Commit();
  Commit(5);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(scheduler->batch().token_ids[0], 5) << "no name of it";
}

TEST_F(PipelineTest, TheOldestIsCommittedFirstAndAbortedRowsGetNothing) {
  Restart(3);
  for (int64_t id = 1; id <= 3; ++id) Add(id, 4, 4);
  ASSERT_TRUE(Step());
  for (int64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(BatchIds(), Ids{id});
  }
  EXPECT_EQ(scheduler->Abort({2}), 1);
  for (int32_t id = 1; id <= 3; ++id) {
    Commit(70 + id);
    EXPECT_EQ(scheduler->result().ids[0], id);
    EXPECT_EQ(scheduler->result().num_tokens[0], id == 2 ? 0 : 1);
    scheduler->CheckIntegrity();
  }
  EXPECT_EQ(Drain(), (Ids{1, 3}));
}

TEST_F(PipelineTest, DraftsAreForOneStage) {
  SchedulerConfig config = DefaultConfig();
  config.stages = 2;
  EXPECT_THROW(Start(config), std::invalid_argument);
  config.max_draft_tokens = 0;
  config.stages = 0;
  EXPECT_THROW(Start(config), std::invalid_argument);
}

}  // namespace
}  // namespace rtp_llm

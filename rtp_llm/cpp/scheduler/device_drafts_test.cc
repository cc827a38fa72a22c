// SPDX-License-Identifier: Apache-2.0
// How a step names tokens that only the device knows, for the code that computes them there.

#include <gtest/gtest.h>

#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {
namespace {

using Tokens = std::vector<int32_t>;

class DeviceDraftsTest : public SchedulerFixture {
 protected:
  static Tokens Part(const HostArray<int32_t>& array, int32_t begin, int32_t end) {
    return Tokens(array.data() + begin, array.data() + end);
  }
};

TEST_F(DeviceDraftsTest, DraftsThatTheDeviceFindsAreNamedByTheirRows) {
  SchedulerConfig config = DefaultConfig();
  config.device_drafts = true;
  Start(config);
  RequestOptions options = MaxTokens(9);
  options.needs_history = true;
  Add(Ids{1}, 3, options);
  ASSERT_TRUE(Step(5));
  ASSERT_TRUE(Schedule({{1, {-1, 7, -1}}}));
  const Batch& batch = scheduler->batch();
  const int32_t name = -1 - config.max_rows();
  EXPECT_EQ(Part(batch.token_ids, 1, 4), (Tokens{name, 7, name - 2}));
  EXPECT_EQ(Part(batch.draft_tokens, 0, 4), (Tokens{-1, 7, -1, -1}));
  EXPECT_EQ(Part(batch.history_tokens, 4, 7), (Tokens{name, 7, name - 2}));
  const Tokens sampled{9, 7, 8, 3};
  scheduler->Commit(sampled.data(), 1, 4);
  EXPECT_EQ(scheduler->result().num_tokens[0], 4);
}

TEST_F(DeviceDraftsTest, TheTokenBeforeAStepIsThere) {
  SchedulerConfig config = DefaultConfig();
  config.max_batch_tokens = 8;
  Start(config);
  const auto previous = [&] { return scheduler->batch().previous_tokens[0]; };
  Add(1, 11, 9);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(previous(), 0) << "there is none";
  Commit();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(previous(), 1007) << "of the chunk before";
  Commit(5);
  ASSERT_TRUE(Schedule({{1, {6, 7}}}));
  EXPECT_EQ(previous(), 1010) << "the prompt's last one, before 5";
  const Tokens sampled{6, 7, 8};
  scheduler->Commit(sampled.data(), 1, 3);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(previous(), 7) << "a draft that was right, before 8";
  Commit(9);
  Add(2, 11, 5);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(scheduler->batch().previous_tokens[0], 8) << "each sequence has its own";
  EXPECT_EQ(scheduler->batch().previous_tokens[1], 0);
}

TEST_F(DeviceDraftsTest, TheTokenAfterAChunkIsKnownWhereItsPromptContinues) {
  SchedulerConfig config = DefaultConfig();
  config.max_batch_tokens = 8;
  Start(config);
  Add(1, 11, 5);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(scheduler->batch().next_tokens[0], 1008);
  Commit();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(scheduler->batch().next_tokens[0], -1);
  Commit(5);
  ASSERT_TRUE(Schedule({{1, {6}}}));
  EXPECT_EQ(scheduler->batch().next_tokens[0], -1);
}

}  // namespace
}  // namespace rtp_llm

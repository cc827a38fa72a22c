// SPDX-License-Identifier: Apache-2.0
// Models that keep nothing of a token: each prompt is computed in one step, and nothing follows it.

#include <gtest/gtest.h>

#include <stdexcept>

#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {
namespace {

class WholePromptsTest : public SchedulerFixture {
 protected:
  static SchedulerConfig Config(bool overlap = false) {
    SchedulerConfig config = DefaultConfig();
    config.groups.clear();
    config.max_draft_tokens = 0;
    config.max_batch_tokens = 32;
    config.max_model_len = 32;
    config.overlap = overlap;
    return config;
  }
  void AddPrompt(int64_t id, int32_t length, int32_t priority = 0) {
    RequestOptions options;
    options.prompt_only = true;
    options.priority = priority;
    Add(Ids{id}, length, options);
  }
};

TEST_F(WholePromptsTest, APromptThatDoesNotFitWaitsForAStepOfItsOwn) {
  for (const bool overlap : {false, true}) {
    Start(Config(overlap));
    AddPrompt(1, 20);
    AddPrompt(2, 13);
    AddPrompt(3, 19);
    AddPrompt(4, 32);
    for (const Ids& expected : {Ids{1}, Ids{2, 3}, Ids{4}}) {
      ASSERT_TRUE(Schedule());
      EXPECT_EQ(BatchIds(), expected);
      EXPECT_TRUE(RowIds().empty());
      Commit();
    }
    EXPECT_FALSE(Schedule());
    scheduler->CheckIntegrity();
    EXPECT_EQ(scheduler->stats().total_blocks, 0);
  }
}

TEST_F(WholePromptsTest, AnUrgentPromptGoesFirst) {
  Start(Config());
  AddPrompt(1, 32);
  AddPrompt(2, 32);
  AddPrompt(3, 32, -5);
  EXPECT_EQ(Drain(), (Ids{3, 1, 2}));
}

TEST_F(WholePromptsTest, AnAbortedPromptLeavesNothing) {
  Start(Config(/*overlap=*/true));
  AddPrompt(1, 9);
  AddPrompt(2, 32);
  ASSERT_TRUE(Schedule());
  scheduler->Abort({1});
  Commit();
  EXPECT_EQ(Drain(), Ids{2});
  scheduler->CheckIntegrity();
}

TEST_F(WholePromptsTest, OutputAndSmallStepsAreRefused) {
  Start(Config());
  EXPECT_THROW(Add(1, 5, 3), std::invalid_argument);
  EXPECT_THROW(AddPrompt(1, 33), std::invalid_argument);
  for (const auto change : {+[](SchedulerConfig* config) { config->max_batch_tokens = 31; },
                            +[](SchedulerConfig* config) { config->max_draft_tokens = 1; },
                            +[](SchedulerConfig* config) { config->stages = 2; }}) {
    SchedulerConfig config = Config();
    change(&config);
    EXPECT_THROW(Start(config), std::invalid_argument);
  }
}

}  // namespace
}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "rtp_llm/cpp/cache/errors.h"
#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {
namespace {

class SchedulerTest : public SchedulerFixture {
 protected:
  void CommitRows(const std::vector<std::vector<int32_t>>& rows) {
    std::vector<int32_t> flat;
    for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
    scheduler->Commit(flat.data(), static_cast<int32_t>(rows.size()),
                      static_cast<int32_t>(rows.at(0).size()));
  }
  // Samples `tokens` one by one; how many are taken until the sequence ends, and why it ends.
  std::pair<int32_t, FinishReason> Sample(const RequestOptions& options,
                                          const std::vector<int32_t>& tokens, int32_t prompt = 4) {
    Add(Ids{1}, prompt, options);
    int32_t taken = 0;
    auto finish = FinishReason::kNone;
    while (finish == FinishReason::kNone && taken < static_cast<int32_t>(tokens.size())) {
      EXPECT_TRUE(Step(tokens[taken]));
      if (scheduler->result().num_rows == 0) continue;  // a chunk of the prompt
      ++taken;
      finish = static_cast<FinishReason>(scheduler->result().finish[0]);
    }
    scheduler->Abort({1});
    return {taken, finish};
  }
};

using Outcome = std::pair<int32_t, FinishReason>;

TEST_F(SchedulerTest, StopConditions) {
  RequestOptions options = MaxTokens(5);
  EXPECT_EQ(Sample(options, {7, 7, 7, 7, 7, 7}), Outcome(5, FinishReason::kLength));
  options.eos_token_ids = {2, 3};
  EXPECT_EQ(Sample(options, {7, 3, 7}), Outcome(2, FinishReason::kEos));
  EXPECT_EQ(Sample(options, {2}), Outcome(1, FinishReason::kEos));
  options.stop_token_ids = {8};
  EXPECT_EQ(Sample(options, {7, 7, 8}), Outcome(3, FinishReason::kStopToken));
  EXPECT_EQ(Sample(options, {7, 7, 7, 7, 2}), Outcome(5, FinishReason::kEos))
      << "the reason is the token, also at the limit";
  options.min_tokens = 3;
  EXPECT_EQ(Sample(options, {2, 8, 7, 2}), Outcome(4, FinishReason::kEos));
  EXPECT_EQ(Sample(options, {2, 8, 3}), Outcome(3, FinishReason::kEos));
  options.eos_token_ids = {};
  options.min_tokens = 0;
  EXPECT_EQ(Sample(options, {2, 2, 2, 8}), Outcome(4, FinishReason::kStopToken))
      << "eos is ignored";
  options.max_tokens = 1000;
  options.stop_token_ids = {};
  EXPECT_EQ(Sample(options, std::vector<int32_t>(9, 7), 195), Outcome(5, FinishReason::kLength))
      << "the longest sequence";
}

TEST_F(SchedulerTest, SeveralTokensPerSequence) {
  Add(1, 4, 10);
  RequestOptions options = MaxTokens(10);
  options.eos_token_ids = {2};
  Add(Ids{2}, 4, options);
  ASSERT_TRUE(Step(5));
  ASSERT_TRUE(Schedule({{1, {6, 7}}}));
  EXPECT_EQ(BatchIds(), (Ids{2, 1}));
  EXPECT_EQ(BatchCounts(), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(scheduler->batch().row_steps[3], 3);
  CommitRows({{5, -1, -1}, {6, 7, 8}});
  EXPECT_EQ(scheduler->result().num_tokens[0], 1);
  EXPECT_EQ(scheduler->result().num_tokens[1], 3);
  ASSERT_TRUE(Schedule({{1, {4, 4}}, {2, {5, 2}}}));
  EXPECT_EQ(BatchIds(), (Ids{1, 2}));
  CommitRows({{4, 4, 4}, {5, 2, 8}});
  EXPECT_EQ(scheduler->result().num_tokens[1], 2) << "what follows the end is dropped";
  EXPECT_EQ(scheduler->result().tokens[5], -1);
  EXPECT_EQ(scheduler->result().finish[1], static_cast<uint8_t>(FinishReason::kEos));
  scheduler->CheckIntegrity();
  EXPECT_EQ(Drain(), Ids{1});
}

TEST_F(SchedulerTest, CommitChangesNothingWhenTheTokensDoNotSuit) {
  Add(1, 4, 3);
  ASSERT_TRUE(Schedule());
  const int32_t none = -1;
  EXPECT_THROW(scheduler->Commit(&none, 1, 1), std::invalid_argument);
  EXPECT_THROW(scheduler->Commit(nullptr, 0, 1), std::invalid_argument);
  const std::vector<int32_t> wide(9, 5);
  EXPECT_THROW(scheduler->Commit(wide.data(), 1, 9), std::invalid_argument);
  EXPECT_THROW(scheduler->Commit(wide.data(), 1, 2), std::invalid_argument) << "without a draft";
  EXPECT_THROW(Schedule(), std::logic_error);
  Commit();
  EXPECT_THROW(scheduler->Commit(wide.data(), 1, 1), std::invalid_argument);
  EXPECT_EQ(Drain(), Ids{1});
}

TEST_F(SchedulerTest, AcceptsExactlyWhatCouldFit) {
  SchedulerConfig config = DefaultConfig();
  config.groups[0].num_blocks = 6;  // 20 tokens
  config.max_running = 2;
  config.max_queued = 1;
  Start(config);
  EXPECT_THROW(Add(1, 16, 6), std::invalid_argument);
  EXPECT_FALSE(scheduler->has_work());
  Add(1, 16, 5);  // the last token is never computed
  EXPECT_THROW(Add(1, 1, 1), std::invalid_argument) << "the id is taken";
  Add(2, 1, 1);
  Add(3, 1, 1);
  EXPECT_THROW(Add(4, 1, 1), QueueFullError);
  EXPECT_THROW(Add(Ids{4, 5, 6}, 1, MaxTokens(1)), std::invalid_argument) << "never a place";
  ASSERT_TRUE(Step());
  EXPECT_EQ(Ended(), Ids{2});
  Add(4, 1, 1);
  EXPECT_EQ(Drain(), (Ids{1, 3, 4}));
  config.max_model_len = 18;
  Start(config);
  EXPECT_THROW(Add(1, 18, 1), std::invalid_argument);
  Add(1, 17, 50);
  EXPECT_EQ(Drain(), Ids{1});
}

TEST_F(SchedulerTest, RefusesImpossibleSettings) {
  const auto refuse = [](const std::function<void(SchedulerConfig*)>& change) {
    SchedulerConfig config = DefaultConfig();
    change(&config);
    EXPECT_THROW(Scheduler{config}, std::invalid_argument);
  };
  refuse([](SchedulerConfig* config) { config->groups.clear(); });
  refuse([](SchedulerConfig* config) { config->max_running = 0; });
  refuse([](SchedulerConfig* config) { config->max_draft_tokens = -1; });
  refuse([](SchedulerConfig* config) { config->max_draft_tokens = 64; });
  refuse([](SchedulerConfig* config) { config->max_queued = 0; });
  refuse([](SchedulerConfig* config) { config->max_batch_tokens = 0; });
  refuse([](SchedulerConfig* config) { config->max_model_len = 1; });
  refuse([](SchedulerConfig* config) { config->hash_bits = 200; });
  refuse([](SchedulerConfig* config) { config->aging_steps = 0; });
}

TEST_F(SchedulerTest, SlotsAreKeptWhileASequenceLives) {
  const int32_t token = 1;
  const auto slots = scheduler->Add({1, 2}, &token, 1, MaxTokens(3));
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_NE(slots[0], slots[1]);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(scheduler->batch().row_slots[0], slots[0]);
    EXPECT_EQ(scheduler->batch().row_slots[1], slots[1]);
    Commit();
  }
  for (int64_t id = 10; id < 42; ++id) {
    const auto other = scheduler->Add({id}, &token, 1, MaxTokens(1));
    EXPECT_GE(other[0], 0);
    EXPECT_LT(other[0], scheduler->config().max_sequences());
  }
}

TEST_F(SchedulerTest, ForksShareOnePrefillAndPartAfterwards) {
  Add(Ids{1, 2, 3}, 10, MaxTokens(4));
  Add(4, 4, 4);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), (Ids{1, 4}));
  EXPECT_EQ(RowIds(), (Ids{1, 2, 3, 4}));
  const Batch& batch = scheduler->batch();
  EXPECT_EQ(batch.logit_rows[0], 9);
  EXPECT_EQ(batch.logit_rows[2], 9);
  EXPECT_EQ(batch.logit_rows[3], 13);
  CommitRows({{5}, {6}, {7}, {8}});
  scheduler->CheckIntegrity();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(batch.groups[0].num_copies, 2);
  EXPECT_EQ(batch.token_ids[0], 5);
  EXPECT_EQ(batch.token_ids[1], 6);
  EXPECT_EQ(batch.token_ids[2], 7);
  CommitRows({{5}, {6}, {7}, {8}});
  EXPECT_EQ(Drain(), (Ids{1, 2, 3, 4}));
}

TEST_F(SchedulerTest, ForksThatEndWithTheirFirstToken) {
  Add(Ids{1, 2, 3}, 10, MaxTokens(1));
  ASSERT_TRUE(Schedule());
  Commit();
  EXPECT_EQ(Ended(), (Ids{1, 2, 3}));
  EXPECT_FALSE(scheduler->has_work());
  scheduler->CheckIntegrity();
}

TEST_F(SchedulerTest, TheNextForkTakesOverWhenTheLeaderIsAborted) {
  for (const int when : {0, 1, 2}) {
    Add(Ids{1, 2, 3}, 50, MaxTokens(2));
    ASSERT_TRUE(when == 0 || Schedule());
    if (when == 2) Commit();
    EXPECT_EQ(scheduler->Abort({1}), 1);
    scheduler->CheckIntegrity();
    EXPECT_EQ(scheduler->Abort({1}), 0);
    if (when == 1) Commit();
    EXPECT_EQ(scheduler->stats().running + scheduler->stats().waiting, 2);
    EXPECT_EQ(scheduler->Abort({3}), 1);
    EXPECT_EQ(Drain(), Ids{2});
  }
}

TEST_F(SchedulerTest, RowsOfAbortedSequencesHaveNoTokens) {
  Add(1, 4, 5);
  Add(2, 4, 5);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(scheduler->Abort({1}), 1);
  Add(1, 4, 5);  // takes the same id, and perhaps the same slot
  CommitRows({{-1}, {6}});
  EXPECT_EQ(scheduler->result().num_tokens[0], 0);
  EXPECT_EQ(scheduler->result().finish[0], 0);
  EXPECT_EQ(scheduler->result().num_tokens[1], 1);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), (Ids{2, 1}));
  EXPECT_EQ(BatchCounts(), (std::vector<int32_t>{1, 4}));
}

TEST_F(SchedulerTest, HistoryIsThatOfRowsThatAsked) {
  Add(1, 3, 5);
  RequestOptions options = MaxTokens(5);
  options.needs_history = true;
  options.sampling_flags = 6;
  Add(Ids{2}, 2, options);
  ASSERT_TRUE(Step(77));
  ASSERT_TRUE(Schedule());
  const Batch& batch = scheduler->batch();
  EXPECT_EQ(batch.history_cu[1], 0);
  ASSERT_EQ(batch.history_cu[2], 3);
  EXPECT_EQ(batch.history_tokens[0], 2000);
  EXPECT_EQ(batch.history_tokens[1], 2001);
  EXPECT_EQ(batch.history_tokens[2], 77);
  EXPECT_EQ(batch.sampling_flags, 6);
}

TEST_F(SchedulerTest, CachedTokensAreReported) {
  const std::vector<int32_t> prompt(21, 5);
  for (const int32_t expected : {0, 20}) {
    scheduler->Add({1}, prompt.data(), 21, MaxTokens(1));
    ASSERT_TRUE(Step());
    EXPECT_EQ(scheduler->result().cached_tokens[0], expected);
  }
  EXPECT_EQ(scheduler->stats().prefix_hit_tokens, 20);
  EXPECT_EQ(scheduler->stats().prefix_query_tokens, 42);
}

class EventsTest : public SchedulerFixture {
 protected:
  static constexpr int kEvents = 7;

  void Restart() {
    SchedulerConfig config = DefaultConfig();
    config.groups[0].num_blocks = 6;
    config.max_running = 3;
    config.max_queued = 3;
    config.max_batch_tokens = 5;
    config.max_model_len = 14;
    Start(config);
  }

  void AddNext(int32_t count, int32_t length, int32_t max_tokens, int32_t priority) {
    Ids ids(count);
    for (int64_t& id : ids) id = next_id_++;
    try {
      Add(ids, length, MaxTokens(max_tokens, priority));
    } catch (const QueueFullError&) {
      ++refused_;
    }
  }

  void AbortInsideStep() {
    if (!Schedule()) return;
    scheduler->Abort({scheduler->batch().seq_ids[0]});
    Commit();
  }

  void Happen(int event) {
    if (event == 0) AddNext(1, 7, 6, 0);
    if (event == 1) AddNext(2, 6, 3, 1);
    if (event == 2) AddNext(1, 2, 9, -1);
    if (event == 3) Step();
    if (event == 4) AbortInsideStep();
    if (event == 5) scheduler->Abort({next_id_ - 1, next_id_ - 2});
    for (int i = 0; event == 6 && i < 4; ++i) Step();
  }

  int64_t next_id_ = 1;
  int refused_ = 0;
};

// Every sequence of five events leaves an empty scheduler sound, and whatever is left ends.
TEST_F(EventsTest, EveryShortSequence) {
  constexpr int kLength = 5;
  int total = 1;
  for (int i = 0; i < kLength; ++i) total *= kEvents;
  for (int code = 0; code < total; ++code) {
    if (code % 1000 == 0) Restart();  // else it goes on empty, with a used prefix cache
    for (int i = 0, rest = code; i < kLength; ++i, rest /= kEvents) {
      Happen(rest % kEvents);
      ASSERT_NO_THROW(scheduler->CheckIntegrity()) << "events " << code << " at " << i;
    }
    Drain(200);
    ASSERT_FALSE(HasFailure()) << "events " << code;
  }
  EXPECT_GT(refused_, 0);
}

}  // namespace
}  // namespace rtp_llm

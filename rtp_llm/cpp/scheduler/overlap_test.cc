// SPDX-License-Identifier: Apache-2.0
// Batches that are scheduled while the tokens of the one before are not known.

#include <gtest/gtest.h>

#include <functional>

#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {
namespace {

class OverlapTest : public SchedulerFixture {
 protected:
  void SetUp() override {
    Restart([](SchedulerConfig*) {});
  }

  void Restart(const std::function<void(SchedulerConfig*)>& change) {
    SchedulerConfig config = DefaultConfig();
    config.overlap = true;
    change(&config);
    Start(config);
  }
  void CommitRows(const std::vector<int32_t>& tokens) {
    scheduler->Commit(tokens.data(), static_cast<int32_t>(tokens.size()), 1);
  }
  std::vector<int32_t> Counts() {
    const int32_t* counts = scheduler->result().num_tokens.data();
    return std::vector<int32_t>(counts, counts + scheduler->result().num_rows);
  }
  // Steps to the end with two batches in flight whenever that can be.
  Ids DrainOverlapped() {
    Ids order;
    for (int i = 0; i < 1000 && (scheduler->has_work() || !scheduler->uncommitted().empty()); ++i) {
      while (scheduler->uncommitted().size() < 2 && Schedule()) {
      }
      Commit();
      scheduler->CheckIntegrity();
      for (const int64_t id : Ended()) order.push_back(id);
    }
    Drain();
    return order;
  }
};

TEST_F(OverlapTest, ATokenInFlightIsNamedByItsRow) {
  Add(1, 4, 5);
  Add(2, 3, 5);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(scheduler->uncommitted(), std::vector<int32_t>{2});
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(scheduler->uncommitted(), (std::vector<int32_t>{2, 2}));
  const Batch& batch = scheduler->batch();
  EXPECT_EQ(BatchIds(), (Ids{1, 2}));
  EXPECT_EQ(batch.token_ids[0], -1);
  EXPECT_EQ(batch.token_ids[1], -2);
  EXPECT_EQ(batch.positions[0], 4);
  EXPECT_EQ(batch.seq_lens[1], 4);
  EXPECT_EQ(batch.row_steps[0], 1);
  scheduler->CheckIntegrity();
  EXPECT_THROW(Schedule(), std::logic_error) << "two are enough";
  CommitRows({50, 60});
  EXPECT_EQ(scheduler->result().ids[1], 2);
  EXPECT_EQ(scheduler->result().tokens[1], 60);
  CommitRows({51, 61});
  // Nothing flies: the ids are known.
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(batch.token_ids[0], 51);
  EXPECT_EQ(batch.token_ids[1], 61);
}

TEST_F(OverlapTest, RowsAreThoseOfTheBatchInFlight) {
  Add(1, 40, 5);  // two chunks, so that it samples later and in another row
  ASSERT_TRUE(Schedule());
  Add(2, 3, 5);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), (Ids{1, 2}));
  CommitRows({});
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(scheduler->batch().token_ids[0], -1);
  EXPECT_EQ(scheduler->batch().token_ids[1], -2);
  EXPECT_EQ(scheduler->Abort({1}), 1);
  CommitRows({7, 8});
  EXPECT_EQ(Counts(), (std::vector<int32_t>{0, 1}));
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{2});
  EXPECT_EQ(scheduler->batch().token_ids[0], -2) << "its row was the second";
}

TEST_F(OverlapTest, HistoryNamesItToo) {
  RequestOptions options = MaxTokens(5);
  options.needs_history = true;
  Add(Ids{2}, 2, options);
  ASSERT_TRUE(Schedule());
  ASSERT_TRUE(Schedule());
  const Batch& batch = scheduler->batch();
  ASSERT_EQ(batch.history_cu[1], 3);
  EXPECT_EQ(batch.history_tokens[1], 2001);
  EXPECT_EQ(batch.history_tokens[2], -1);
}

TEST_F(OverlapTest, TheLastTokenIsKnownInAdvance) {
  Add(1, 4, 2);
  Add(2, 4, 1);
  ASSERT_TRUE(Schedule());
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{1}) << "the other one is as long as it may be";
  scheduler->CheckIntegrity();
  CommitRows({5, 5});
  EXPECT_EQ(Ended(), Ids{2});
  EXPECT_FALSE(Schedule());
  EXPECT_EQ(scheduler->uncommitted(), std::vector<int32_t>{1});
  CommitRows({5});
  EXPECT_EQ(Ended(), Ids{1});
  EXPECT_TRUE(scheduler->uncommitted().empty());
  EXPECT_FALSE(scheduler->has_work());
  scheduler->CheckIntegrity();
}

TEST_F(OverlapTest, AStopTokenLeavesADeadRowAndNoTokenMore) {
  RequestOptions options = MaxTokens(50);
  options.eos_token_ids = {3};
  Add(Ids{1}, 4, options);
  Add(2, 4, 50);
  ASSERT_TRUE(Schedule());
  ASSERT_TRUE(Schedule());
  CommitRows({3, 3});
  EXPECT_EQ(Ended(), Ids{1});
  Add(1, 4, 50);  // the same id, and perhaps the same slot and blocks
  ASSERT_TRUE(Schedule());
  scheduler->CheckIntegrity();
  CommitRows({9, 9});
  EXPECT_EQ(Counts(), (std::vector<int32_t>{0, 1}));
  EXPECT_TRUE(Ended().empty());
  scheduler->Abort({1, 2});
  CommitRows({-1, -1});
  EXPECT_EQ(Drain(), Ids());
}

TEST_F(OverlapTest, OnlyBlocksOfKnownTokensAreFoundByOthers) {
  RequestOptions options = MaxTokens(50);
  options.eos_token_ids = {3};
  const std::vector<int32_t> prompt = {1, 2, 4, 5, 6, 7};
  scheduler->Add({1}, prompt.data(), 6, options);
  ASSERT_TRUE(Schedule());
  ASSERT_TRUE(Schedule());
  CommitRows({8});
  ASSERT_TRUE(Schedule());  // writes the eighth token: the second block is full
  CommitRows({3});
  EXPECT_EQ(Ended(), Ids{1});
  CommitRows({9});
  const std::vector<int32_t> longer = {1, 2, 4, 5, 6, 7, 8, 3, 9, 9};
  scheduler->Add({2}, longer.data(), 10, MaxTokens(1));
  ASSERT_TRUE(Step());
  EXPECT_EQ(scheduler->result().cached_tokens[0], 4);
  EXPECT_EQ(Drain(), Ids());
}

TEST_F(OverlapTest, ForksStartWhileTheirFirstTokensFly) {
  Add(Ids{1, 2, 3}, 10, MaxTokens(4));
  ASSERT_TRUE(Schedule());
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), (Ids{1, 2, 3}));
  const Batch& batch = scheduler->batch();
  EXPECT_EQ(batch.groups[0].num_copies, 2);
  EXPECT_EQ(batch.token_ids[0], -1);
  EXPECT_EQ(batch.token_ids[2], -3);
  scheduler->CheckIntegrity();
  EXPECT_EQ(scheduler->Abort({1}), 1);
  CommitRows({5, 6, 7});
  EXPECT_EQ(Counts(), (std::vector<int32_t>{0, 1, 1}));
  EXPECT_EQ(DrainOverlapped(), (Ids{2, 3}));
}

TEST_F(OverlapTest, TheNextForkTakesOverInTheBatchThatIsNotInFlight) {
  for (const int batches : {1, 2}) {
    Add(Ids{1, 2}, 50, MaxTokens(2));
    for (int i = 0; i < batches; ++i) ASSERT_TRUE(Schedule());
    EXPECT_EQ(scheduler->Abort({1}), 1);
    scheduler->CheckIntegrity();
    EXPECT_EQ(DrainOverlapped(), Ids{2});
  }
}

TEST_F(OverlapTest, WhoIsPreemptedWithATokenInFlightWaitsForIt) {
  Restart([](SchedulerConfig* config) {
    config->groups[0].num_blocks = 5;  // 16 tokens
    config->prefix_cache = false;
  });
  Add(1, 6, 10);
  Add(2, 6, 10);
  ASSERT_TRUE(Schedule());
  ASSERT_TRUE(Schedule());
  CommitRows({20, 21});
  ASSERT_TRUE(Schedule());
  CommitRows({22, 23});
  ASSERT_TRUE(Schedule());  // the first needs a third block, and gets one of the second's
  EXPECT_EQ(BatchIds(), Ids{1});
  EXPECT_EQ(scheduler->stats().preemptions, 1);
  EXPECT_EQ(scheduler->stats().waiting, 1);
  scheduler->CheckIntegrity();
  CommitRows({24, 25});
  EXPECT_EQ(Counts(), (std::vector<int32_t>{1, 1})) << "its token is not lost";
  scheduler->CheckIntegrity();
  EXPECT_EQ(DrainOverlapped(), (Ids{1, 2}));
}

TEST_F(OverlapTest, ATokenThatIsInFlightMayEndWhoWasPreempted) {
  Restart([](SchedulerConfig* config) { config->groups[0].num_blocks = 5; });
  RequestOptions options = MaxTokens(10);
  options.stop_token_ids = {3};
  Add(1, 6, 10);
  Add(Ids{2}, 6, options);
  ASSERT_TRUE(Schedule());
  ASSERT_TRUE(Schedule());
  CommitRows({20, 21});
  ASSERT_TRUE(Schedule());
  CommitRows({22, 23});
  ASSERT_TRUE(Schedule());
  ASSERT_EQ(scheduler->stats().waiting, 1);
  CommitRows({24, 3});
  EXPECT_EQ(Ended(), Ids{2});
  EXPECT_EQ(DrainOverlapped(), Ids{1});
}

TEST_F(OverlapTest, CommitChangesNothingWhenTheTokensDoNotSuit) {
  Add(1, 4, 5);
  ASSERT_TRUE(Schedule());
  ASSERT_TRUE(Schedule());
  const std::vector<int32_t> two = {5, 6};
  EXPECT_THROW(scheduler->Commit(two.data(), 1, 2), std::invalid_argument) << "one token a row";
  EXPECT_THROW(CommitRows({-1}), std::invalid_argument);
  EXPECT_THROW(CommitRows({5, 6}), std::invalid_argument);
  EXPECT_EQ(scheduler->uncommitted().size(), 2u);
  scheduler->CheckIntegrity();
  CommitRows({5});
  CommitRows({6});
  EXPECT_THROW(CommitRows({6}), std::invalid_argument);
  EXPECT_EQ(DrainOverlapped(), Ids{1});
}

TEST_F(OverlapTest, PriorityTakesTheTurnOfWhoFlies) {
  Restart([](SchedulerConfig* config) { config->max_running = 1; });
  Add(1, 4, 6);
  ASSERT_TRUE(Schedule());
  Add(2, 4, 2, -1);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{2});
  scheduler->CheckIntegrity();
  EXPECT_EQ(DrainOverlapped(), (Ids{2, 1}));
}

class OverlapEventsTest : public OverlapTest {
 protected:
  static constexpr int kEvents = 7;

  void SetUp() override {
    Restart([](SchedulerConfig* config) {
      config->groups[0].num_blocks = 6;
      config->max_running = 3;
      config->max_queued = 3;
      config->max_batch_tokens = 5;
      config->max_model_len = 14;
    });
  }

  void AddNext(int32_t count, int32_t length, int32_t max_tokens, int32_t priority) {
    Ids ids(count);
    for (int64_t& id : ids) id = next_id_++;
    RequestOptions options = MaxTokens(max_tokens, priority);
    options.stop_token_ids = {3};
    try {
      Add(ids, length, options);
    } catch (const QueueFullError&) {
      ++refused_;
    }
  }

  void Happen(int event) {
    if (event == 0) AddNext(1, 7, 6, 0);
    if (event == 1) AddNext(2, 6, 3, 1);
    if (event == 2) AddNext(1, 2, 9, -1);
    if (event == 3 && scheduler->uncommitted().size() < 2) Schedule();
    if (event == 4) Commit(sampled_++ % 5);
    if (event == 5) scheduler->Abort({next_id_ - 1, next_id_ - 3});
    for (int i = 0; event == 6 && i < 3; ++i) {
      Happen(3);
      if (scheduler->uncommitted().size() == 2) Happen(4);
    }
  }

  int64_t next_id_ = 1;
  int32_t sampled_ = 0;
  int refused_ = 0;
};

// Every sequence of five events leaves the scheduler sound, and whatever is left ends.
TEST_F(OverlapEventsTest, EveryShortSequence) {
  constexpr int kLength = 5;
  int total = 1;
  for (int i = 0; i < kLength; ++i) total *= kEvents;
  for (int code = 0; code < total; ++code) {
    if (code % 1000 == 0) SetUp();  // else it continues empty, with a used prefix cache
    for (int i = 0, rest = code; i < kLength; ++i, rest /= kEvents) {
      Happen(rest % kEvents);
      ASSERT_NO_THROW(scheduler->CheckIntegrity()) << "events " << code << " at " << i;
    }
    DrainOverlapped();
    ASSERT_FALSE(HasFailure()) << "events " << code;
  }
  EXPECT_GT(refused_, 0);
}

}  // namespace
}  // namespace rtp_llm

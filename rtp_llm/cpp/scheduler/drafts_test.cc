// SPDX-License-Identifier: Apache-2.0
// Steps that verify draft tokens.

#include <gtest/gtest.h>

#include <numeric>

#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {
namespace {

using Tokens = std::vector<int32_t>;

class DraftsTest : public SchedulerFixture {
 protected:
  void Restart(int32_t num_blocks, bool overlap = false) {
    SchedulerConfig config = DefaultConfig();
    config.groups[0].num_blocks = num_blocks;
    config.overlap = overlap;
    Start(config);
  }
  void CommitTokens(const std::vector<Tokens>& outputs) {
    size_t width = 1;
    for (const Tokens& each : outputs) width = std::max(width, each.size());
    Tokens flat;
    for (const Tokens& each : outputs) {
      flat.insert(flat.end(), each.begin(), each.end());
      flat.resize(flat.size() + width - each.size(), -1);
    }
    scheduler->Commit(flat.data(), static_cast<int32_t>(outputs.size()),
                      static_cast<int32_t>(width));
    scheduler->CheckIntegrity();
  }
  template <typename T>
  static std::vector<T> Part(const HostArray<T>& array, int32_t begin, int32_t end) {
    return std::vector<T>(array.data() + begin, array.data() + end);
  }
  template <typename T>
  static std::vector<T> Rows(const HostArray<T>& array, const Batch& batch) {
    return Part(array, 0, batch.num_rows);
  }
  Tokens NumTokens() {
    return Part(scheduler->result().num_tokens, 0, scheduler->result().num_rows);
  }
  FinishReason Finish(int32_t output) {
    return static_cast<FinishReason>(scheduler->result().finish[output]);
  }
  int64_t FreeBlocks() { return scheduler->stats().free_blocks; }
};

TEST_F(DraftsTest, EachDraftIsComputedAndHasARow) {
  RequestOptions options = MaxTokens(9);
  options.needs_history = true;
  Add(Ids{1}, 3, options);
  Add(2, 3, 9);
  ASSERT_TRUE(Step(5));
  ASSERT_TRUE(Schedule({{1, {6, -1, 8}}}));
  const Batch& batch = scheduler->batch();
  EXPECT_EQ(BatchIds(), (Ids{2, 1}));
  EXPECT_EQ(BatchCounts(), (Tokens{1, 4}));
  EXPECT_EQ(Part(batch.token_ids, 0, 5), (Tokens{5, 5, 6, 0, 8})) << "no id is -1";
  EXPECT_EQ(Part(batch.positions, 0, 5), (Tokens{3, 3, 4, 5, 6}));
  EXPECT_EQ(Part(batch.seq_lens, 0, 2), (Tokens{4, 7}));
  EXPECT_EQ(batch.num_outputs, 2);
  EXPECT_EQ(Part(batch.row_cu, 0, 3), (Tokens{0, 1, 5}));
  EXPECT_EQ(Rows(batch.logit_rows, batch), (Tokens{0, 1, 2, 3, 4}));
  EXPECT_EQ(Rows(batch.row_ids, batch), (Ids{2, 1, 1, 1, 1}));
  EXPECT_EQ(Rows(batch.row_steps, batch), (Ids{1, 1, 2, 3, 4}));
  EXPECT_EQ(Rows(batch.draft_tokens, batch), (Tokens{-1, 6, -1, 8, -1}));
  EXPECT_EQ(Part(batch.history_cu, 0, 6), (Tokens{0, 0, 4, 5, 6, 7}));
  EXPECT_EQ(Part(batch.history_tokens, 0, 7), (Tokens{1000, 1001, 1002, 5, 6, 0, 8}));
  const Batch::GroupArrays& group = batch.groups[0];
  EXPECT_EQ(group.slot_mapping[4], group.block_table[group.table_width + 1] * 4 + 2);
  CommitTokens({{7}, {6, 7}});
  EXPECT_EQ(NumTokens(), (Tokens{1, 2}));
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Part(batch.token_ids, 0, 2), (Tokens{7, 7}));
  EXPECT_EQ(Part(batch.positions, 0, 2), (Tokens{5, 4})) << "the draft that was right is computed";
  CommitTokens({{1}, {1}});
}

TEST_F(DraftsTest, OnlyDecodingSequencesHaveDrafts) {
  Add(1, 40, 9);
  ASSERT_TRUE(Schedule({{1, {6}}, {99, {6}}}));
  EXPECT_EQ(BatchCounts(), Tokens{32});
  CommitTokens({});
  ASSERT_TRUE(Schedule({{1, {6}}}));
  EXPECT_EQ(BatchCounts(), Tokens{8});
  EXPECT_EQ(scheduler->batch().num_rows, 1);
  CommitTokens({{5}});
  ASSERT_TRUE(Schedule({{1, {}}}));
  EXPECT_EQ(BatchCounts(), Tokens{1});
  CommitTokens({{5}});
  Add(2, 8, 9);
  ASSERT_TRUE(Schedule({{1, {6}}, {2, {6}}}));
  EXPECT_EQ(BatchIds(), (Ids{1, 2}));
  EXPECT_EQ(BatchCounts(), (Tokens{2, 8})) << "who verifies comes before prompts";
  CommitTokens({{6, 7}, {5}});
}

TEST_F(DraftsTest, NoMoreDraftsThanCanBeAccepted) {
  Add(1, 4, 4);
  ASSERT_TRUE(Step(5));
  ASSERT_TRUE(Schedule({{1, {6, 7, 8, 9}}}));
  EXPECT_EQ(BatchCounts(), Tokens{3}) << "three more, the last of which is never computed";
  CommitTokens({{6, 7, 8}});
  EXPECT_EQ(NumTokens(), Tokens{3});
  EXPECT_EQ(Finish(0), FinishReason::kLength);
  Add(2, 197, 50);  // max_model_len is 200
  while (scheduler->result().num_rows == 0 || scheduler->result().ids[0] != 2) Step(5);
  ASSERT_TRUE(Schedule({{2, {6, 7, 8, 9}}}));
  EXPECT_EQ(BatchCounts(), Tokens{2});
  CommitTokens({{6, 7}});
  EXPECT_EQ(Ended(), Ids{2});
}

// Whatever the rule that ends a sequence, at each place inside an output.
TEST_F(DraftsTest, RulesEndASequenceAtEveryPlace) {
  const Tokens drafts = {11, 12, 13, 14, 15};
  Tokens sampled = drafts;
  sampled.push_back(16);
  int64_t id = 0;
  for (int32_t place = 0; place < 6; ++place) {
    for (const FinishReason reason :
         {FinishReason::kEos, FinishReason::kStopToken, FinishReason::kLength}) {
      RequestOptions options = MaxTokens(50);
      if (reason == FinishReason::kEos) options.eos_token_ids = {sampled[place]};
      if (reason == FinishReason::kStopToken) options.stop_token_ids = {sampled[place]};
      if (reason == FinishReason::kLength) options.max_tokens = 1 + place + 1;
      Add(Ids{++id}, 6, options);
      ASSERT_TRUE(Step(5));
      ASSERT_TRUE(Schedule({{id, drafts}}));
      Tokens most = sampled;
      most.resize(std::min(BatchCounts()[0], 6));
      CommitTokens({most});
      EXPECT_EQ(NumTokens(), Tokens{place + 1});
      EXPECT_EQ(Finish(0), reason);
      EXPECT_FALSE(scheduler->has_work());
    }
  }
}

TEST_F(DraftsTest, StopIdsInsideAnOutputWaitForMinTokens) {
  RequestOptions options = MaxTokens(50);
  options.stop_token_ids = {3};
  options.min_tokens = 4;
  Add(Ids{1}, 6, options);
  ASSERT_TRUE(Step(5));
  ASSERT_TRUE(Schedule({{1, {3, 3, 3, 3}}}));
  CommitTokens({{3, 3, 3, 3, 3}});
  EXPECT_EQ(NumTokens(), Tokens{3}) << "the fourth token of the output";
  EXPECT_EQ(Finish(0), FinishReason::kStopToken);
}

TEST_F(DraftsTest, BlocksOfRejectedDraftsAreGivenBack) {
  Add(1, 4, 50);
  ASSERT_TRUE(Step(5));
  const int64_t before = FreeBlocks();
  ASSERT_TRUE(Schedule({{1, {6, 7, 8, 9, 10, 11, 12}}}));
  EXPECT_EQ(FreeBlocks(), before - 2);
  CommitTokens({{7}});
  EXPECT_EQ(FreeBlocks(), before - 1) << "what it would hold without drafts";
  ASSERT_TRUE(Schedule({{1, {6, 7, 8, 9, 10, 11, 12}}}));
  CommitTokens({{6, 7, 8, 9, 10, 11, 12, 13}});
  EXPECT_EQ(FreeBlocks(), before - 3) << "13 tokens are computed, 4 of them were before";
  EXPECT_EQ(Drain(), Ids{1});
}

TEST_F(DraftsTest, OnlyAcceptedDraftsArePublished) {
  Add(1, 4, 50);
  ASSERT_TRUE(Step(5));
  ASSERT_TRUE(Schedule({{1, {6, 7, 8, 9, 10, 11, 12}}}));
  CommitTokens({{6, 7, 8, 9, 40}});
  scheduler->Abort({1});
  const auto cached = [&](const Tokens& output) {
    Tokens prompt = {1000, 1001, 1002, 1003};
    prompt.insert(prompt.end(), output.begin(), output.end());
    scheduler->Add({2}, prompt.data(), static_cast<int32_t>(prompt.size()), MaxTokens(1));
    Step();
    return scheduler->result().cached_tokens[0];
  };
  EXPECT_EQ(cached({5, 6, 7, 8, 9, 10, 11, 12, 13}), 8);
  EXPECT_EQ(cached({5, 6, 7, 40, 9, 10, 11, 12, 13}), 4);
}

TEST_F(DraftsTest, AFinishedOutputPublishesWhatItAccepted) {
  RequestOptions options = MaxTokens(50);
  options.stop_token_ids = {8};
  Add(Ids{1}, 4, options);
  ASSERT_TRUE(Step(5));
  ASSERT_TRUE(Schedule({{1, {6, 7, 8, 9}}}));
  CommitTokens({{6, 7, 8, 9, 10}});
  EXPECT_EQ(Ended(), Ids{1});
  const Tokens prompt = {1000, 1001, 1002, 1003, 5, 6, 7, 8, 9, 10, 11, 12, 13};
  scheduler->Add({2}, prompt.data(), 13, MaxTokens(1));
  ASSERT_TRUE(Step());
  EXPECT_EQ(scheduler->result().cached_tokens[0], 4) << "the stop id itself is never counted";
}

TEST_F(DraftsTest, DraftsTakeNobodysBlocks) {
  Restart(5);  // 16 tokens
  Add(1, 6, 10);
  Add(2, 5, 10);
  ASSERT_TRUE(Step(5));
  ASSERT_TRUE(Schedule({{1, {6, 7, 8, 9}}, {2, {6, 7, 8, 9}}}));
  EXPECT_EQ(BatchIds(), (Ids{1, 2}));
  EXPECT_EQ(BatchCounts(), (Tokens{2, 3})) << "up to the end of their second blocks";
  EXPECT_EQ(scheduler->stats().preemptions, 0);
  CommitTokens({{1}, {1}});
  EXPECT_EQ(Drain(), (Ids{1, 2}));
}

TEST_F(DraftsTest, WithoutABlockThereIsNoDraft) {
  Restart(5);
  Add(1, 7, 9);
  ASSERT_TRUE(Step(5));
  Add(2, 7, 2);
  ASSERT_TRUE(Schedule({{1, {6, 7, 8, 9}}}));
  EXPECT_EQ(BatchIds(), (Ids{1, 2})) << "the other one is admitted all the same";
  EXPECT_EQ(BatchCounts(), (Tokens{1, 7}));
  CommitTokens({{1}, {1}});
  EXPECT_EQ(Drain().size(), 2u);
}

TEST_F(DraftsTest, TokensOfOthersComeBeforeDrafts) {
  Add(1, 4, 50);
  Add(2, 4, 50);
  ASSERT_TRUE(Step(5));
  Add(3, 25, 50);
  ASSERT_TRUE(Schedule({{1, {6, 7, 8}}, {2, {6, 7, 8}}}));
  EXPECT_EQ(BatchIds(), (Ids{1, 2, 3}));
  EXPECT_EQ(BatchCounts(), (Tokens{4, 3, 25})) << "the budget is 32; the first has the better rank";
  CommitTokens({{6, 7, 8, 9}, {6, 7, 8}, {5}});
  Add(4, 90, 50);
  ASSERT_TRUE(Schedule({{1, {6, 7, 8}}}));
  EXPECT_EQ(BatchCounts(), (Tokens{1, 1, 1, 29}));
  CommitTokens({{1}, {1}, {1}});
}

TEST_F(DraftsTest, ASharedBlockIsCopiedOnce) {
  Add(Ids{1, 2}, 6, MaxTokens(9));
  ASSERT_TRUE(Step(5));
  ASSERT_TRUE(Schedule({{1, {6, 7, 8}}, {2, {6, 7, 8}}}));
  EXPECT_EQ(scheduler->batch().groups[0].num_copies, 1);
  scheduler->CheckIntegrity();
  CommitTokens({{6, 1}, {6, 7, 2}});
  EXPECT_EQ(Drain().size(), 2u);
}

TEST_F(DraftsTest, DraftsThatMakeNoSenseAreRefused) {
  Add(1, 4, 50);
  ASSERT_TRUE(Step(5));
  EXPECT_THROW(Schedule({{1, {-2}}}), std::invalid_argument);
  EXPECT_THROW(Schedule({{1, Tokens(8, 1)}}), std::invalid_argument) << "max_draft_tokens is 7";
  const std::vector<int64_t> twice = {1, 1};
  const Tokens tokens = {3, 3};
  const Tokens long_ones = {1, 2};
  const Tokens good = {1, 1};
  EXPECT_THROW(scheduler->Schedule({2, 1, twice.data(), tokens.data(), good.data()}),
               std::invalid_argument);
  const std::vector<int64_t> ids = {1, 2};
  EXPECT_THROW(scheduler->Schedule({2, 1, ids.data(), tokens.data(), long_ones.data()}),
               std::invalid_argument);
  EXPECT_TRUE(scheduler->uncommitted().empty());
  EXPECT_EQ(Drain(), Ids{1});
}

TEST_F(DraftsTest, TokensThatFollowNoDraftAreRefused) {
  Add(1, 4, 50);
  ASSERT_TRUE(Step(5));
  ASSERT_TRUE(Schedule({{1, {6, 7, -1}}}));
  for (const Tokens& wrong : {Tokens{7, 7}, Tokens{6, 8, 9}, Tokens{6, 7, 8, 9, 10},
                              Tokens{7, kNotFiniteRow}, Tokens{-1, 6}}) {
    EXPECT_THROW(CommitTokens({wrong}), std::invalid_argument);
  }
  CommitTokens({{6, 7, 50, 51}});
  EXPECT_EQ(NumTokens(), Tokens{4}) << "a draft that only the device knows may be any token";
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(scheduler->batch().positions[0], 8);
  EXPECT_EQ(scheduler->batch().token_ids[0], 51);
  CommitTokens({{1}});
}

TEST_F(DraftsTest, WhoVerifiesSitsOutTheOverlappedStep) {
  Restart(101, true);
  Add(1, 4, 50);
  Add(2, 4, 50);
  ASSERT_TRUE(Schedule());
  CommitTokens({{5}, {5}});
  ASSERT_TRUE(Schedule({{1, {6, 7, 8}}}));
  EXPECT_EQ(BatchIds(), (Ids{2, 1}));
  ASSERT_TRUE(Schedule({{1, {9}}, {2, {-1}}}));
  EXPECT_EQ(BatchIds(), Ids{2});
  EXPECT_EQ(scheduler->uncommitted(), (Tokens{2, 1}));
  const Batch& batch = scheduler->batch();
  EXPECT_EQ(Part(batch.token_ids, 0, 2), (Tokens{-1, 0}))
      << "a draft may follow a pending token if the device knows it";
  EXPECT_EQ(Part(batch.row_steps, 0, 2), (Ids{2, 3}));
  CommitTokens({{20}, {6, 7, 1}});
  EXPECT_EQ(NumTokens(), (Tokens{1, 3}));
  ASSERT_TRUE(Schedule({{1, {9}}}));
  EXPECT_EQ(BatchIds(), Ids{1}) << "now the other one verifies";
  EXPECT_EQ(Part(batch.token_ids, 0, 2), (Tokens{1, 9}));
  EXPECT_EQ(Part(batch.positions, 0, 2), (Tokens{7, 8}));
  CommitTokens({{21, 22}});
  EXPECT_EQ(NumTokens(), Tokens{2});
  CommitTokens({{9, 30}});
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Part(batch.token_ids, 0, 2), (Tokens{30, 22}));
}

TEST_F(DraftsTest, RowsOfOthersInFlightAreNamedAfterThoseOfDrafts) {
  Restart(101, true);
  Add(1, 4, 50);
  ASSERT_TRUE(Schedule());
  CommitTokens({{5}});
  Add(2, 4, 50);
  ASSERT_TRUE(Schedule({{1, {6, 7}}}));
  EXPECT_EQ(BatchIds(), (Ids{1, 2}));
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{2});
  EXPECT_EQ(scheduler->batch().token_ids[0], -4) << "row 3: the first one has three";
  EXPECT_EQ(scheduler->uncommitted(), (Tokens{2, 1})) << "outputs";
}

TEST_F(DraftsTest, NothingElseRunsWhileDraftsAreInFlight) {
  Restart(101, true);
  Add(1, 4, 50);
  ASSERT_TRUE(Schedule());
  CommitTokens({{5}});
  ASSERT_TRUE(Schedule({{1, {6, 7}}}));
  EXPECT_FALSE(Schedule());
  EXPECT_EQ(scheduler->uncommitted(), Tokens{1});
  CommitTokens({{6, 9}});
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(scheduler->batch().positions[0], 6);
}

TEST_F(DraftsTest, AbortAndPreemptionWhileDraftsAreInFlight) {
  for (const bool abort : {true, false}) {
    Restart(7, true);  // 24 tokens
    Add(1, 7, 15);
    Add(2, 7, 10);
    ASSERT_TRUE(Schedule());
    CommitTokens({{5}, {5}});
    ASSERT_TRUE(Schedule());
    CommitTokens({{5}, {5}});
    ASSERT_TRUE(Schedule({{2, {6, 7}}}));
    EXPECT_EQ(BatchCounts(), (Tokens{1, 3}));
    Add(3, 12, 2, -1);
    if (abort) {
      EXPECT_EQ(scheduler->Abort({2}), 1);
    }
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(scheduler->stats().preemptions, abort ? 0 : 1);
    scheduler->CheckIntegrity();
    CommitTokens({{8}, {6, 9}});
    EXPECT_EQ(NumTokens(), abort ? (Tokens{1, 0}) : (Tokens{1, 2}));
    for (int i = 0; i < 100 && !scheduler->uncommitted().empty(); ++i) {
      Commit();
      Schedule();
      scheduler->CheckIntegrity();
    }
    Drain();
  }
}

TEST_F(DraftsTest, ARequestWithoutOverlapWaitsForEachToken) {
  Restart(101, true);
  RequestOptions options = MaxTokens(50);
  options.overlap = false;
  Add(Ids{1}, 4, options);
  Add(2, 4, 50);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), (Ids{1, 2}));
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{2});
  CommitTokens({{5}, {6}});
  ASSERT_TRUE(Schedule({{1, {8, 9}}}));
  EXPECT_EQ(BatchIds(), (Ids{2, 1}));
  EXPECT_EQ(scheduler->batch().token_ids[1], 5) << "known";
}

}  // namespace
}  // namespace rtp_llm

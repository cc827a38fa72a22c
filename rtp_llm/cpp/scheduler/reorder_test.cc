// SPDX-License-Identifier: Apache-2.0
// The steps of beam searches.

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include "rtp_llm/cpp/scheduler/recurrent_fixture.h"
#include "rtp_llm/cpp/scheduler/reorder_fixture.h"

namespace rtp_llm {
namespace {

TEST_F(ReorderTest, BeamsContinueTheirParents) {
  Add({1, 2, 3}, 5, Beams(9));
  ASSERT_TRUE(Step(7));
  EXPECT_FALSE(Schedule()) << "the tokens are not chosen yet";
  scheduler->Reorder({1, 2, 3}, {0, 0, 0}, {10, 11, 12});
  scheduler->CheckIntegrity();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Copies(), 2) << "of the block that all of them write to, but one";
  Commit(7);
  scheduler->Reorder({1, 2, 3}, {1, 0, 1}, {20, 21, 22});
  scheduler->CheckIntegrity();
  EXPECT_EQ(OutputOf(1), (Tokens{11, 20}));
  EXPECT_EQ(OutputOf(2), (Tokens{10, 21}));
  EXPECT_EQ(OutputOf(3), (Tokens{11, 22}));
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), (Ids{1, 2, 3}));
  EXPECT_EQ(BatchCounts(), (Tokens{1, 1, 1}));
  const Batch& batch = scheduler->batch();
  EXPECT_EQ(Tokens(batch.token_ids.data(), batch.token_ids.data() + 3), (Tokens{20, 21, 22}));
  EXPECT_EQ(Copies(), 1);
  EXPECT_EQ(BlockOf(0, 0), BlockOf(1, 0));
  EXPECT_EQ(std::set<int32_t>({BlockOf(0, 1), BlockOf(1, 1), BlockOf(2, 1)}).size(), 3u);
  Commit(7);
  scheduler->Abort({1, 2, 3});
  EXPECT_EQ(Drain(), Ids());
}

TEST_F(ReorderTest, AtABlockBorderNothingIsCopied) {
  Add({1, 2}, 7, Beams(9));
  ASSERT_TRUE(Step());
  scheduler->Reorder({1, 2}, {0, 1}, {10, 11});
  ASSERT_TRUE(Step());
  scheduler->Reorder({1, 2}, {1, 1}, {20, 21});
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Copies(), 0);
  EXPECT_EQ(BlockOf(0, 1), BlockOf(1, 1));
  Commit();
  scheduler->Abort({1, 2});
  EXPECT_EQ(Drain(), Ids());
}

TEST_F(ReorderTest, TheLastTokenEndsThem) {
  Add({1, 2}, 4, Beams(2));
  ASSERT_TRUE(Step());
  scheduler->Reorder({1, 2}, {0, 0}, {10, 11});
  ASSERT_TRUE(Step());
  EXPECT_EQ(Ended(), (Ids{1, 2}));
  EXPECT_EQ(Drain(), Ids());
}

TEST_F(ReorderTest, WhatMakesNoSenseIsRefused) {
  RequestOptions prompts = Beams(4);
  prompts.prompt_only = true;
  EXPECT_THROW(Add({1}, 4, prompts), std::invalid_argument);
  EXPECT_THROW(Add({1, 2, 3, 4, 5, 6, 7, 8}, 40, Beams(100)), std::invalid_argument)
      << "all of them must fit at the same time";
  Add({1, 2}, 4, Beams(4));
  Add(3, 4, 4);
  const auto refuse = [&](const Ids& ids, const Tokens& parents, const Tokens& tokens) {
    EXPECT_THROW(scheduler->Reorder(ids, parents, tokens), std::invalid_argument);
  };
  refuse({1, 2}, {0, 0}, {5, 6});  // they wait
  ASSERT_TRUE(Step());
  refuse({1, 2}, {0}, {5, 6});
  refuse({1, 2}, {0, 2}, {5, 6});
  refuse({1, 2}, {0, 1}, {5, -1});
  refuse({1, 1}, {0, 1}, {5, 6});
  refuse({1, 4}, {0, 1}, {5, 6});
  refuse({3}, {0}, {5});
  scheduler->Abort({1, 2});
  EXPECT_EQ(Drain(), Ids{3});
}

// A group of beams, and others that preempt them, in few blocks.
class PreemptedReorderTest : public ReorderTest {
 protected:
  void StartRandom() {
    SchedulerConfig config = DefaultConfig();
    config.groups = {{GroupKind::kFull, 25, 4, 0, 1}};
    config.overlap = true;
    config.max_batch_tokens = 8 + Below(12);
    config.prefix_cache = Below(2) == 0;
    Start(config);
    outputs_.assign(3, {});
    sampled_.clear();
    Add(kBeams, 6, Beams(14, /*priority=*/5));
  }
  int32_t Below(int32_t bound) { return static_cast<int32_t>(random_() % bound); }

  void StepOnce() {
    while (scheduler->uncommitted().size() < 2 && Schedule()) {
    }
    Commit(7);
    scheduler->CheckIntegrity();
    const StepResult& result = scheduler->result();
    for (int32_t row = 0; row < result.num_rows; ++row) {
      if (result.ids[row] <= 3 && result.num_tokens[row] == 1) sampled_.insert(result.ids[row]);
    }
    if (sampled_.size() == 3) Choose();
  }

  void Choose() {
    sampled_.clear();
    const Tokens parents = {Below(3), Below(3), Below(3)};
    const Tokens tokens = {100 + Below(50), 200 + Below(50), 300 + Below(50)};
    scheduler->Reorder(kBeams, parents, tokens);
    scheduler->CheckIntegrity();
    const std::vector<Tokens> before = outputs_;
    for (int32_t i = 0; i < 3; ++i) {
      outputs_[i] = before[parents[i]];
      outputs_[i].push_back(tokens[i]);
      ASSERT_EQ(OutputOf(kBeams[i]), outputs_[i]);
    }
  }

  const Ids kBeams = {1, 2, 3};
  std::mt19937 random_{3};
  std::vector<Tokens> outputs_;
  std::set<int64_t> sampled_;
};

TEST_F(PreemptedReorderTest, OutputsAreThoseThatWereChosen) {
  int64_t preemptions = 0;
  for (int32_t round = 0; round < 40; ++round) {
    StartRandom();
    int64_t next = 10;
    for (int32_t step = 0; step < 400 && outputs_[0].size() < 13; ++step) {
      if (step < 60 && Below(4) == 0) Add(next++, 1 + Below(20), 1 + Below(30));
      StepOnce();
    }
    ASSERT_EQ(outputs_[0].size(), 13u);
    scheduler->Abort(kBeams);
    while (!scheduler->uncommitted().empty()) Commit();
    preemptions += scheduler->stats().preemptions;
    Drain();
  }
  EXPECT_GT(preemptions, 40);
}

class RecurrentReorderTest : public RecurrentTest {};

TEST_F(RecurrentReorderTest, StatesAreThoseOfTheParents) {
  const Tokens prompt = Numbers(0, 9);
  scheduler->Add({1, 2}, prompt.data(), 9, Beams(9));
  Chunks();
  scheduler->Reorder({1, 2}, {0, 1}, {10, 11});
  ASSERT_TRUE(Schedule());
  const int32_t second = Writes()[1];
  Commit();
  scheduler->Reorder({1, 2}, {1, 1}, {20, 21});
  scheduler->CheckIntegrity();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Reads(), (Counts{second, second}));
  EXPECT_NE(Writes()[0], Writes()[1]);
  Commit();
  scheduler->Abort({1, 2});
  EXPECT_EQ(Drain(), Ids());
}

}  // namespace
}  // namespace rtp_llm

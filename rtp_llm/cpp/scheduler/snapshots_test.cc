// SPDX-License-Identifier: Apache-2.0
// Where prompts are cut for recurrent groups, which snapshots are kept and who is served by them.

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "rtp_llm/cpp/scheduler/recurrent_fixture.h"

namespace rtp_llm {
namespace {

TEST_F(RecurrentTest, ChunksEndOnABlockUnlessTheyAreTheLast) {
  Add(1, 70, 3);
  EXPECT_EQ(Chunks(), (Counts{32, 32, 6}));
  AddPrompt(2, Prompt(0, 39, 2));  // along with the first one's token: 31 are left of the budget
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchCounts(), (Counts{1, 24}));
  Commit();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchCounts(), (Counts{1, 8})) << "and 7 after the last block";
  Commit();
  Drain();
}

TEST_F(RecurrentTest, WithoutThePrefixCacheNothingIsCutForSnapshots) {
  SchedulerConfig config = Hybrid();
  config.prefix_cache = false;
  Start(config);
  Add(1, 30, 1);
  EXPECT_EQ(Chunks(), Counts{30});
  Add(2, 45, 1);
  EXPECT_EQ(Chunks(), (Counts{32, 13}));
  EXPECT_EQ(Snapshots(), 0);
  Drain();
}

TEST_F(RecurrentTest, APromptThatMustWaitForABlockIsNotOvertaken) {
  SchedulerConfig config = Hybrid();
  config.max_batch_tokens = 10;
  Start(config);
  for (int64_t id = 1; id <= 3; ++id) Add(id, 2, 6);
  Add(4, 20, 4);  // its block of 8 does not fit with three decodes
  Add(5, 3, 4);   // this one would
  ASSERT_TRUE(Step());
  while (scheduler->stats().running == 3) {
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(BatchIds(), (Ids{1, 2, 3}));
    Commit();
  }
  EXPECT_EQ(Drain(), (Ids{4, 5}));
}

// The same for one that runs already: others that always come may not use up what it waits for.
TEST_F(RecurrentTest, ARunningPromptIsNotOvertakenEither) {
  SchedulerConfig config = Hybrid();
  config.max_batch_tokens = 9;
  Start(config);
  Add(1, 20, 1);
  int64_t next = 10;
  for (int32_t step = 0; step < 60; ++step) {
    // Each needs one token now and two in every later step, which leave less than a block.
    while (scheduler->stats().waiting < 4) {
      Add(Ids{next, next + 1}, 1, MaxTokens(6));
      next += 2;
    }
    ASSERT_TRUE(Step());
    scheduler->CheckIntegrity();
    const Ids ended = Ended();
    if (std::count(ended.begin(), ended.end(), 1) > 0) return;
  }
  FAIL() << "starved";
}

TEST_F(RecurrentTest, ABudgetBelowABlockIsRefused) {
  SchedulerConfig config = Hybrid();
  config.max_batch_tokens = kState;
  Start(config);
  Add(1, 30, 2);
  EXPECT_EQ(Chunks(), (Counts{8, 8, 8, 6}));
  Drain();
  config.max_batch_tokens = kState - 1;
  EXPECT_THROW(Start(config), std::invalid_argument);
}

TEST_F(RecurrentTest, TheSamePromptAgainComputesOnlyItsLastBlock) {
  for (const int32_t length : {40, 41, 47}) {
    Start(Hybrid());
    AddPrompt(1, Prompt(length, 0, 0));
    Chunks();
    EXPECT_EQ(Served(), 0);
    AddPrompt(2, Prompt(length, 0, 0));
    EXPECT_EQ(Chunks(), Counts{length - (length - 1) / kState * kState});
    EXPECT_EQ(Served(), (length - 1) / kState * kState);
    Drain();
  }
}

TEST_F(RecurrentTest, AHitIsCutToTheDeepestSnapshot) {
  SchedulerConfig config = Hybrid();
  config.max_batch_tokens = 100;
  Start(config);
  AddPrompt(1, Prompt(40, 10, 1));  // a snapshot after 48 tokens, none where prompts part
  EXPECT_EQ(Chunks(), (Counts{48, 2}));
  AddPrompt(2, Prompt(40, 10, 2));
  EXPECT_EQ(Chunks(), (Counts{40, 8, 2})) << "nothing to go on from; it makes one at the junction";
  EXPECT_EQ(Served(), 0);
  AddPrompt(3, Prompt(40, 10, 3));
  EXPECT_EQ(Chunks(), (Counts{8, 2}));
  EXPECT_EQ(Served(), 40) << "the next one that shares it is served";
  EXPECT_EQ(Snapshots(), 4);
  Drain();
}

TEST_F(RecurrentTest, AJunctionInsideABlockIsRoundedDown) {
  SchedulerConfig config = Hybrid();
  config.max_batch_tokens = 100;
  Start(config);
  AddPrompt(1, Prompt(30, 20, 1));
  EXPECT_EQ(Chunks(), (Counts{48, 2}));
  AddPrompt(2, Prompt(30, 20, 2));  // 28 tokens are in blocks of the other group
  EXPECT_EQ(Chunks(), (Counts{24, 24, 2}));
  AddPrompt(3, Prompt(30, 20, 3));
  Chunks();
  EXPECT_EQ(Served(), 24);
  Drain();
}

TEST_F(RecurrentTest, WhereAPromptOnlyGoesOnThereIsNoJunction) {
  SchedulerConfig config = Hybrid();
  config.max_batch_tokens = 100;
  Start(config);
  AddPrompt(1, Prompt(42, 0, 0), 20);  // with its output 61 tokens, a snapshot after 40
  Drain();
  Tokens longer = Prompt(42, 0, 0);
  longer.resize(60, 9);
  for (int32_t i = 0; i < 30; ++i) longer.push_back(500 + i);
  AddPrompt(2, longer);
  EXPECT_EQ(Chunks(), (Counts{48, 2}));
  EXPECT_EQ(Served(), 40);
  Drain();
}

TEST_F(RecurrentTest, ASnapshotIsNotHitInTheStepThatMakesIt) {
  AddPrompt(1, Prompt(16, 1, 1));
  AddPrompt(2, Prompt(16, 1, 2));
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchCounts(), (Counts{16, 16}));
  EXPECT_EQ(Reads(), (Counts{kNullBlock, kNullBlock}));
  EXPECT_NE(Writes()[0], Writes()[1]);
  Commit();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Reads()[0], Reads()[1]) << "both made the same one, and it is kept once";
  EXPECT_EQ(Snapshots(), 1);
  scheduler->CheckIntegrity();
  Commit();
  Drain();
}

TEST_F(RecurrentTest, OverlapHitsASnapshotThatIsWrittenByTheStepInFlight) {
  SchedulerConfig config = Hybrid();
  config.overlap = true;
  Start(config);
  AddPrompt(1, Prompt(16, 3, 1), 4);
  ASSERT_TRUE(Schedule());
  const int32_t snapshot = Writes()[0];
  AddPrompt(2, Prompt(16, 3, 2), 4);
  ASSERT_TRUE(Schedule());  // the device has the first batch before this one
  EXPECT_EQ(Reads(), (Counts{snapshot, snapshot}));
  EXPECT_NE(Writes()[0], Writes()[1]);
  scheduler->CheckIntegrity();
  Commit();
  Commit();
  while (Step()) {
  }
}

TEST_F(RecurrentTest, OutputIsKeptAtTheIntervalThatIsAskedFor) {
  Start(Hybrid(20, 2));  // every 16 tokens
  Add(1, 10, 60);        // and at 8
  ASSERT_TRUE(Step());
  ASSERT_TRUE(Step());
  int32_t changes = 0;
  for (int32_t length = 11; length < 69; ++length) {
    ASSERT_TRUE(Schedule());
    const bool kept = (length - 1) % 16 == 0;  // the state before this token is
    EXPECT_EQ(IsPublished(Reads()[0]), kept) << length;
    EXPECT_EQ(Reads() != Writes(), kept) << length;
    changes += kept;
    Commit();
  }
  EXPECT_EQ(changes, 4);
  EXPECT_EQ(Snapshots(), 5);
  Drain();
}

TEST_F(RecurrentTest, SnapshotsAreEvictedByTheirOwnUse) {
  SchedulerConfig config = Hybrid(4);
  config.max_batch_tokens = 100;
  Start(config);
  for (const int32_t name : {1, 2, 3}) {
    AddPrompt(name, Prompt(0, 20, name));
    Chunks();
  }
  EXPECT_EQ(Snapshots(), 3);
  AddPrompt(4, Prompt(0, 20, 1));
  Chunks();
  EXPECT_EQ(Served(), 16) << "the first one is used again";
  AddPrompt(5, Prompt(0, 20, 5));
  Chunks();
  AddPrompt(6, Prompt(0, 20, 6));
  Chunks();
  for (const auto& [name, served] : {std::pair{1, 16}, {2, 0}}) {
    AddPrompt(10 + name, Prompt(0, 20, name));
    Chunks();
    EXPECT_EQ(Served(), served) << name;
  }
  EXPECT_LE(Snapshots(), 4);
  EXPECT_GT(scheduler->stats().groups[0].cached_blocks, 20) << "the other group is not short";
  Drain();
}

class DraftedStatesTest : public RecurrentTest {
 protected:
  // A step that verifies three drafts of sequence 1 and accepts so many of them.
  void Verify(int32_t accepted) {
    const Tokens drafts = {101, 102, 103};
    ASSERT_TRUE(Schedule({{1, drafts}}));
    ASSERT_EQ(scheduler->batch().num_rows, 4);
    read = Reads();
    written = Writes();
    length = scheduler->batch().seq_lens[0];
    Tokens tokens(drafts.begin(), drafts.begin() + accepted);
    tokens.push_back(7);
    scheduler->Commit(tokens.data(), 1, accepted + 1);
    scheduler->CheckIntegrity();
  }
  void StartDrafted(int32_t interval, int32_t prompt) {
    SchedulerConfig config = Hybrid(20, interval);
    config.max_draft_tokens = 3;
    Start(config);
    Add(1, prompt, 60);
    ASSERT_TRUE(Step());
  }

  Counts read, written;  // by Verify
  int32_t length = 0;
};

TEST_F(DraftedStatesTest, RejectedDraftsLeaveTheStateWhereItIs) {
  StartDrafted(0, 5);
  ASSERT_TRUE(Schedule());
  const Counts block = Writes();
  Commit();
  for (const int32_t accepted : {0, 3, 1, 0, 2}) {
    Verify(accepted);
    EXPECT_EQ(read, block);
    EXPECT_EQ(written, block);
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(Reads(), block);
    EXPECT_EQ(scheduler->batch().seq_lens[0], length - 3 + accepted + 1);
    Commit();
  }
  EXPECT_EQ(Snapshots(), 0);
  Drain();
}

TEST_F(DraftedStatesTest, ASnapshotMayLieAmongAcceptedTokens) {
  for (const int32_t prompt : {4, 5, 6, 7}) {
    StartDrafted(1, prompt);  // every 8 tokens
    Verify(3);                // prompt + 4 tokens are computed then
    EXPECT_TRUE(IsPublished(written[0])) << prompt;
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(Reads(), written);
    EXPECT_NE(Writes(), written) << "it is not written again";
    Commit();
    Drain();
    EXPECT_EQ(Snapshots(), (prompt + 60 - 1) / 8);
  }
}

TEST_F(DraftedStatesTest, ASnapshotBeforeARejectedDraftIsNone) {
  StartDrafted(1, 5);
  Verify(1);  // 7 tokens are computed, and one that was wrong
  EXPECT_FALSE(IsPublished(written[0]));
  Verify(0);
  EXPECT_TRUE(IsPublished(written[0]));
  Drain();
}

}  // namespace
}  // namespace rtp_llm

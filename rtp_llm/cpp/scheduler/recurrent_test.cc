// Sequences whose layers keep a state: which block a step reads and which it writes, where prompts
// are cut, which snapshots are kept and who is served by them.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {
namespace {

constexpr int32_t kState = 8;  // a recurrent block; those of other groups have 4 tokens

class RecurrentTest : public SchedulerFixture {
 protected:
  using Counts = std::vector<int32_t>;
  using Tokens = std::vector<int32_t>;

  static SchedulerConfig Hybrid(int32_t states = 20, int32_t interval = 0) {
    SchedulerConfig config = DefaultConfig();
    config.groups.push_back({GroupKind::kRecurrent, states + 1, kState, 0, 1});
    config.recurrent_snapshot_interval = interval;
    return config;
  }
  void SetUp() override { Start(Hybrid()); }

  static Tokens Numbers(int32_t first, int32_t count) {
    Tokens tokens(count);
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }
  // `shared` tokens that all such prompts begin with, then `own` ones.
  static Tokens Prompt(int32_t shared, int32_t own, int32_t name) {
    Tokens tokens = Numbers(0, shared);
    for (int32_t i = 0; i < own; ++i) tokens.push_back(1000 * name + i);
    return tokens;
  }
  void AddPrompt(int64_t id, const Tokens& prompt, int32_t max_tokens = 1) {
    scheduler->Add({id}, prompt.data(), static_cast<int32_t>(prompt.size()), MaxTokens(max_tokens));
  }
  // Chunks of one prompt from admission to its first token.
  Counts Chunks() {
    Counts chunks;
    do {
      EXPECT_TRUE(Schedule());
      chunks.push_back(BatchCounts()[0]);
      Commit();
    } while (scheduler->result().num_rows == 0);
    return chunks;
  }
  int32_t Served() { return scheduler->result().cached_tokens[0]; }

  Counts Reads() { return Column(&Batch::GroupArrays::state_read); }
  Counts Writes() { return Column(&Batch::GroupArrays::state_write); }
  Counts Column(HostArray<int32_t> Batch::GroupArrays::* array) {
    const int32_t* blocks = (scheduler->batch().groups[1].*array).data();
    return Counts(blocks, blocks + scheduler->batch().num_seqs);
  }
  int64_t Snapshots() { return scheduler->stats().groups[1].cached_blocks; }
  bool IsPublished(int32_t block) {
    return scheduler->cache().pool(1).references(Holder::kCache, block) > 0;
  }
};

TEST_F(RecurrentTest, StartsFromZerosAndDecodesInPlace) {
  Add(1, 6, 20);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Reads(), Counts{kNullBlock});
  const Counts first = Writes();
  Commit();
  for (int32_t length = 7; length < 20; ++length) {
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(Reads(), first) << length;
    EXPECT_EQ(Writes(), first) << "no snapshots of output are kept, also not at " << length;
    scheduler->CheckIntegrity();
    Commit();
  }
  EXPECT_EQ(Snapshots(), 0);
  Drain();
}

TEST_F(RecurrentTest, ChunksEndOnABlockUnlessTheyAreTheLast) {
  Add(1, 70, 3);
  EXPECT_EQ(Chunks(), (Counts{32, 32, 6}));
  AddPrompt(2, Prompt(0, 39, 2));  // beside the first one's token: 31 are left of the budget
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
  Add(4, 20, 4);  // its block of 8 does not fit beside three decodes
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

TEST_F(RecurrentTest, APublishedBlockIsNeverWrittenAgain) {
  Add(1, 20, 6);
  ASSERT_TRUE(Schedule());  // 16 tokens
  const int32_t snapshot = Writes()[0];
  EXPECT_FALSE(IsPublished(snapshot)) << "not before it is computed";
  Commit();
  EXPECT_TRUE(IsPublished(snapshot));
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Reads(), Counts{snapshot});
  const int32_t current = Writes()[0];
  EXPECT_NE(current, snapshot);
  scheduler->CheckIntegrity();
  Commit();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Reads(), Counts{current});
  EXPECT_EQ(Writes(), Counts{current}) << "that one is private";
  EXPECT_EQ(scheduler->cache().pool(1).references(Holder::kRequest, snapshot), 0)
      << "only the latest state stays held";
  Commit();
  Drain();
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

TEST_F(RecurrentTest, ForksReadOneStateAndWriteTheirOwn) {
  for (const int32_t length : {6, 8}) {  // within a block, and at its end, where it is published
    Start(Hybrid());
    Add(Ids{1, 2, 3}, length, MaxTokens(5));
    ASSERT_TRUE(Schedule());
    const int32_t prompt = Writes()[0];
    Commit();
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(Reads(), Counts(3, prompt));
    const Counts writes = Writes();
    EXPECT_EQ(std::set<int32_t>(writes.begin(), writes.end()).size(), 3u);
    EXPECT_EQ(std::count(writes.begin(), writes.end(), prompt), 0) << "others read it in this step";
    EXPECT_EQ(scheduler->batch().groups[1].num_copies, 0);
    scheduler->CheckIntegrity();
    Commit();
    ASSERT_TRUE(Schedule());
    EXPECT_EQ(Reads(), writes);
    EXPECT_EQ(Writes(), writes);
    Commit();
    Drain();
  }
}

TEST_F(RecurrentTest, ForksShareATightBudget) {
  Start(Hybrid(2));
  Add(Ids{1, 2, 3}, 9, MaxTokens(12));
  EXPECT_EQ(Drain().size(), 3u);
}

TEST_F(RecurrentTest, APreemptedSequenceGoesOnFromItsSnapshot) {
  SchedulerConfig config = Hybrid();
  config.max_running = 1;
  Start(config);
  Add(1, 20, 30, 3);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Step());
  Add(2, 4, 2, 0);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(BatchIds(), Ids{2});
  EXPECT_EQ(Reads(), Counts{kNullBlock});
  Commit();
  while (BatchIds() != Ids{1}) {
    Commit();
    ASSERT_TRUE(Schedule());
  }
  EXPECT_EQ(scheduler->batch().positions[0], 16);
  EXPECT_TRUE(IsPublished(Reads()[0]));
  Commit();
  Drain();
}

TEST_F(RecurrentTest, StatesRunOutBeforeOtherBlocksDo) {
  Start(Hybrid(3));
  for (int64_t id = 1; id <= 5; ++id) Add(id, 20, 30);
  EXPECT_EQ(Drain(), (Ids{1, 2, 3, 4, 5}));
  const SchedulerStats stats = scheduler->stats();
  EXPECT_EQ(stats.groups[1].total_blocks, 3);
  EXPECT_EQ(stats.groups[1].free_blocks, 3);
  EXPECT_EQ(stats.groups[0].total_blocks, 100);
}

TEST_F(RecurrentTest, RequestsThatNeedMoreStatesThanThereAreAreRefused) {
  Start(Hybrid(1));
  Add(1, 4, 4);
  EXPECT_THROW(Add(2, 4, 5), std::invalid_argument) << "8 tokens: a snapshot and the next state";
  EXPECT_EQ(Drain(), Ids{1});
}

TEST_F(RecurrentTest, TheStateAfterThePromptIsSent) {
  Add(1, 20, 1);
  ASSERT_TRUE(Schedule());
  EXPECT_TRUE(scheduler->Pin(1, 0, 4)[1].empty()) << "it is not computed in this step";
  EXPECT_THROW(scheduler->Pin(1, 4, 5), std::invalid_argument);
  Commit();
  ASSERT_TRUE(Schedule());
  const auto held = scheduler->Pin(1, 4, 5);
  EXPECT_EQ(held[1], Writes());
  EXPECT_EQ(held[0].size(), 1u);
  Commit();
  EXPECT_EQ(Ended(), Ids{1});
  EXPECT_EQ(scheduler->cache().pool(1).references(Holder::kPin, held[1][0]), 1);
  EXPECT_TRUE(scheduler->Unpin(1));
  Drain();
}

TEST_F(RecurrentTest, AStateThatIsBeingSentIsNotWritten) {
  Add(1, 6, 5);
  ASSERT_TRUE(Schedule());
  const auto held = scheduler->Pin(1, 0, 2);
  EXPECT_EQ(held[1], Writes());
  Commit();
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Reads(), held[1]);
  EXPECT_NE(Writes(), held[1]);
  EXPECT_THROW(scheduler->Pin(1, 0, 2), std::invalid_argument) << "that state is gone";
  EXPECT_TRUE(scheduler->Unpin(1));
  Commit();
  Drain();
}

TEST_F(RecurrentTest, AReceivedPromptBringsItsState) {
  AddPrompt(1, Prompt(16, 3, 1));
  Chunks();
  RequestOptions options = MaxTokens(4);
  options.remote_prompt = true;
  const Tokens prompt = Prompt(16, 5, 2);
  scheduler->Add({2}, prompt.data(), 21, options);
  EXPECT_FALSE(Schedule());
  const auto receivers = scheduler->TakeReceivers();
  ASSERT_EQ(receivers.size(), 1u);
  EXPECT_EQ(receivers[0].cached_tokens, 16);
  EXPECT_TRUE(scheduler->Pin(2, 4, 5)[1].empty());
  const auto held = scheduler->Pin(2, 5, 6);
  ASSERT_EQ(held[1].size(), 1u);
  EXPECT_FALSE(IsPublished(held[1][0])) << "the snapshot that served the prefix stays as it is";
  scheduler->CheckIntegrity();
  scheduler->Unpin(2);
  scheduler->FinishRecv(2, 7, 16);
  ASSERT_TRUE(Schedule());
  EXPECT_EQ(Reads(), held[1]);
  EXPECT_EQ(Writes(), held[1]);
  Commit();
  Drain();
}

TEST_F(RecurrentTest, AbortInFlightLeavesNothingBehind) {
  SchedulerConfig config = Hybrid();
  config.overlap = true;
  Start(config);
  Add(1, 20, 6);
  Add(Ids{2, 3}, 7, MaxTokens(6));
  ASSERT_TRUE(Schedule());
  ASSERT_TRUE(Schedule());
  scheduler->Abort({1, 2});
  scheduler->CheckIntegrity();
  Commit();
  Commit();
  while (Step() || !scheduler->uncommitted().empty()) {
    while (!scheduler->uncommitted().empty()) Commit();
  }
  EXPECT_FALSE(scheduler->has_work());
  scheduler->CheckIntegrity();
}

}  // namespace
}  // namespace rtp_llm

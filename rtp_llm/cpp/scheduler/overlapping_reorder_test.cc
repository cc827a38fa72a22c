// SPDX-License-Identifier: Apache-2.0
// Steps of beam searches that begin before the host knows what was chosen.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include "rtp_llm/cpp/scheduler/reorder_fixture.h"

namespace rtp_llm {
namespace {

// Beams whose next step is scheduled before their choice is known, and what a device makes of it.
class OverlappingReorderTest : public ReorderTest {
 protected:
  static RequestOptions Overlapping(int32_t max_tokens, int32_t priority = 0) {
    RequestOptions options = Beams(max_tokens, priority);
    options.overlap = true;
    return options;
  }
  void StartRandom() {
    SchedulerConfig config = DefaultConfig();
    config.groups = {{GroupKind::kFull, 25, 4, 0, 1}, {GroupKind::kSlidingWindow, 25, 4, 6, 1}};
    config.overlap = true;
    config.max_batch_tokens = 8 + Below(12);
    config.prefix_cache = Below(2) == 0;
    Start(config);
    written_.assign(2, std::map<int32_t, int32_t>());
    outputs_.assign(3, {});
    chosen_.clear();
    sampled_.clear();
    Add(kBeams, 6, Overlapping(14, /*priority=*/5));
  }
  int32_t Below(int32_t bound) { return static_cast<int32_t>(random_() % bound); }

  // What the device does when it begins a step: it orders the blocks of beams whose choice it has
  // made, then it writes the step's tokens. A token is known by its history.
  void Begin() {
    Batch& batch = scheduler->batch();
    std::vector<int32_t> rows;
    for (int32_t row = 0; row < batch.num_rows; ++row) {
      const int64_t id = batch.row_ids[row];
      if (id <= 3 && batch.token_ids[batch.logit_rows[row]] < 0) rows.push_back(row);
    }
    if (!rows.empty()) {
      ASSERT_EQ(rows.size(), 3u) << "all of them or none";
      ++ordered_;
    }
    for (size_t group = 0; group < written_.size(); ++group) BeginGroup(group, rows);
  }

  void BeginGroup(size_t group, const std::vector<int32_t>& rows) {
    Batch& batch = scheduler->batch();
    const Batch::GroupArrays& arrays = batch.groups[group];
    for (int32_t i = 0; i < arrays.num_copies; ++i) {
      Copy(group, arrays.copy_pairs[2 * i], arrays.copy_pairs[2 * i + 1]);
    }
    std::vector<Tokens> tables;
    for (int32_t i = 0; i < batch.num_seqs; ++i) {
      const int32_t* row = &arrays.block_table[static_cast<size_t>(i) * arrays.table_width];
      tables.emplace_back(row, row + arrays.table_width);
    }
    if (!rows.empty()) Order(group, rows, &tables);
    for (int32_t i = 0, token = 0; i < batch.num_seqs; ++i) {
      for (; token < batch.cu_seqlens_q[i + 1]; ++token) {
        const int32_t at = batch.positions[token];
        written_[group][tables[i][at / 4] * 4 + at % 4] = Known(i, token, at);
      }
      CheckHistory(group, tables[i], i);
    }
  }

  // As BeamOrder in Python.
  void Order(size_t group, const std::vector<int32_t>& rows, std::vector<Tokens>* tables) {
    const Batch& batch = scheduler->batch();
    std::map<int64_t, int32_t> place;
    for (const int32_t row : rows) place[batch.row_ids[row]] = batch.logit_rows[row];
    const int32_t at = batch.positions[place[1]];
    const Tokens& parents = chosen_.begin()->second.parents;
    Tokens owners = LastBlockOwners(parents);
    if (at % 4 == 0) owners = {0, 1, 2};
    const std::vector<Tokens> before = *tables;
    std::map<int32_t, int32_t> copied;
    for (int32_t i = 0; i < 3; ++i) {
      Tokens& table = (*tables)[place[i + 1]];
      table = before[place[parents[i] + 1]];
      const int32_t source = table[at / 4];
      table[at / 4] = before[place[owners[i] + 1]][at / 4];
      if (at % 4 != 0 && source != table[at / 4]) copied[table[at / 4]] = source;
    }
    for (const auto& [target, source] : copied) {
      EXPECT_EQ(copied.count(source), 0u) << "a block is written and read";
      Copy(group, source, target);
    }
  }

  void Copy(size_t group, int32_t source, int32_t target) {
    for (int32_t i = 0; i < 4; ++i)
      written_[group][4 * target + i] = written_[group][4 * source + i];
  }

  // The token at a place of a beam as the device knows it: chosen, though not yet told to the host.
  int32_t Known(int32_t sequence, int32_t token, int32_t at) {
    const Batch& batch = scheduler->batch();
    const int64_t id = batch.seq_ids[sequence];
    if (id > 3) return -1;
    if (at < 6) return 1000 + at;
    if (batch.token_ids[token] < 0) return chosen_.begin()->second.tokens[id - 1];
    return outputs_[id - 1][at - 6];
  }

  // What the blocks of a beam hold is what it has been given.
  void CheckHistory(size_t group, const Tokens& table, int32_t sequence) {
    const Batch& batch = scheduler->batch();
    const int64_t id = batch.seq_ids[sequence];
    if (id > 3) return;
    const bool ahead = batch.token_ids[batch.cu_seqlens_q[sequence]] < 0;
    const auto& choice = chosen_.begin()->second;
    Tokens output = ahead ? outputs_[choice.parents[id - 1]] : outputs_[id - 1];
    if (ahead) output.push_back(choice.tokens[id - 1]);
    const int32_t end = batch.seq_lens[sequence];
    for (int32_t at = group == 0 ? 0 : std::max(0, end - 6); at < end; ++at) {
      const int32_t wanted = at < 6 ? 1000 + at : output[at - 6];
      ASSERT_EQ(written_[group][4 * table[at / 4] + at % 4], wanted) << id << " at " << at;
    }
  }

  // The device chooses at the end of a step in which all beams sample; the host hears of it later.
  struct Choice {
    Tokens parents, tokens;
  };
  void ChooseInStep() {
    const Batch& batch = scheduler->batch();
    int32_t beams = 0;
    for (int32_t row = 0; row < batch.num_rows; ++row) beams += batch.row_ids[row] <= 3 ? 1 : 0;
    if (beams == 3) chosen_[step_] = MakeChoice();
  }
  Choice MakeChoice() {
    return {{Below(3), Below(3), Below(3)}, {100 + Below(50), 200 + Below(50), 300 + Below(50)}};
  }

  bool Submit() {
    if (!Schedule()) return false;
    Begin();
    ++step_;
    ChooseInStep();
    return true;
  }

  void StepOnce() {
    while (scheduler->uncommitted().size() < 2 && Submit()) {
    }
    if (scheduler->uncommitted().empty()) return;
    const int32_t oldest = step_ + 1 - static_cast<int32_t>(scheduler->uncommitted().size());
    Commit(7);
    scheduler->CheckIntegrity();
    const StepResult& result = scheduler->result();
    for (int32_t row = 0; row < result.num_rows; ++row) {
      if (result.ids[row] <= 3 && result.num_tokens[row] == 1) sampled_.insert(result.ids[row]);
    }
    if (sampled_.size() == 3) Choose(oldest);
  }

  void Choose(int32_t step) {
    sampled_.clear();
    Choice choice = chosen_.count(step) > 0 ? chosen_[step] : MakeChoice();
    chosen_.erase(step);
    scheduler->Reorder(kBeams, choice.parents, choice.tokens);
    scheduler->CheckIntegrity();
    const std::vector<Tokens> before = outputs_;
    for (int32_t i = 0; i < 3; ++i) {
      outputs_[i] = before[choice.parents[i]];
      outputs_[i].push_back(choice.tokens[i]);
      ASSERT_EQ(OutputOf(kBeams[i]), outputs_[i]);
    }
  }

  const Ids kBeams = {1, 2, 3};
  std::mt19937 random_{5};
  std::vector<std::map<int32_t, int32_t>> written_;  // per group: the token in each slot
  std::vector<Tokens> outputs_;
  std::map<int32_t, Choice> chosen_;  // by the step that gave it; the oldest is not told yet
  std::set<int64_t> sampled_;
  int32_t step_ = 0;
  int64_t ordered_ = 0;
};

TEST_F(OverlappingReorderTest, OwnersOfLastBlocks) {
  EXPECT_EQ(LastBlockOwners({0, 1, 2}), (Tokens{0, 1, 2}));
  EXPECT_EQ(LastBlockOwners({2, 2, 2}), (Tokens{2, 0, 1}));
  EXPECT_EQ(LastBlockOwners({1, 3, 1, 3}), (Tokens{1, 3, 0, 2}));
}

TEST_F(OverlappingReorderTest, OnlyTogetherAndNotWithStates) {
  SchedulerConfig config = DefaultConfig();
  config.groups.push_back({GroupKind::kRecurrent, 9, 4, 0, 1});
  Start(config);
  EXPECT_THROW(Add({1, 2}, 4, Overlapping(4)), std::invalid_argument);
}

TEST_F(OverlappingReorderTest, TheDeviceHasEachBeamsTokens) {
  int64_t preemptions = 0;
  for (int32_t round = 0; round < 60; ++round) {
    StartRandom();
    int64_t next = 10;
    for (int32_t step = 0; step < 400 && outputs_[0].size() < 13; ++step) {
      if (step < 60 && Below(4) == 0) Add(next++, 1 + Below(20), 1 + Below(30));
      StepOnce();
      if (HasFatalFailure()) return;
    }
    ASSERT_EQ(outputs_[0].size(), 13u);
    scheduler->Abort(kBeams);
    while (!scheduler->uncommitted().empty()) Commit();
    preemptions += scheduler->stats().preemptions;
    Drain();
  }
  EXPECT_GT(preemptions, 40);
  EXPECT_GT(ordered_, 200);
}

}  // namespace
}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "rtp_llm/cpp/scheduler/draft_table.h"
#include "rtp_llm/cpp/scheduler/scheduler.h"

namespace rtp_llm {

// A scheduler with blocks of 4 tokens, and short ways to say what happens to it.
class SchedulerFixture : public testing::Test {
 protected:
  using Ids = std::vector<int64_t>;

  static SchedulerConfig DefaultConfig() {
    SchedulerConfig config;
    config.groups = {{GroupKind::kFull, 101, 4, 0, 1}};
    config.max_running = 8;
    config.max_queued = 32;
    config.max_batch_tokens = 32;
    config.max_model_len = 200;
    config.aging_steps = 100;
    config.max_draft_tokens = 7;
    return config;
  }

  void Start(const SchedulerConfig& config) { scheduler = std::make_unique<Scheduler>(config); }
  void SetUp() override { Start(DefaultConfig()); }

  static RequestOptions MaxTokens(int32_t max_tokens, int32_t priority = 0) {
    RequestOptions options;
    options.max_tokens = max_tokens;
    options.priority = priority;
    return options;
  }

  // A prompt whose tokens are unlike those of other sequences.
  void Add(const Ids& ids, int32_t length, const RequestOptions& options) {
    std::vector<int32_t> prompt(length);
    std::iota(prompt.begin(), prompt.end(), static_cast<int32_t>(ids.at(0)) * 1000);
    scheduler->Add(ids, prompt.data(), length, options);
  }
  void Add(int64_t id, int32_t length, int32_t max_tokens, int32_t priority = 0) {
    Add(Ids{id}, length, MaxTokens(max_tokens, priority));
  }

  bool Schedule() { return scheduler->Schedule(); }
  // With drafts, by id.
  bool Schedule(const std::map<int64_t, std::vector<int32_t>>& drafts) {
    return scheduler->Schedule(DraftTable(drafts).view());
  }
  // Of the oldest batch, if there is one.
  void Commit(int32_t token = 9) {
    const std::vector<int32_t> waiting = scheduler->uncommitted();
    const std::vector<int32_t> tokens(waiting.empty() ? 0 : waiting[0], token);
    scheduler->Commit(tokens.data(), static_cast<int32_t>(tokens.size()), 1);
  }
  bool Step(int32_t token = 9) {
    if (!Schedule()) return false;
    Commit(token);
    return true;
  }

  // Ids of the batch in order, and how many tokens each has.
  Ids BatchIds() {
    const int64_t* ids = scheduler->batch().seq_ids.data();
    return Ids(ids, ids + scheduler->batch().num_seqs);
  }
  std::vector<int32_t> BatchCounts() {
    const Batch& batch = scheduler->batch();
    std::vector<int32_t> counts;
    for (int32_t i = 0; i < batch.num_seqs; ++i) {
      counts.push_back(batch.cu_seqlens_q[i + 1] - batch.cu_seqlens_q[i]);
    }
    return counts;
  }
  Ids RowIds() {
    const int64_t* ids = scheduler->batch().row_ids.data();
    return Ids(ids, ids + scheduler->batch().num_rows);
  }
  // Ids that ended with the last commit.
  Ids Ended() {
    const StepResult& result = scheduler->result();
    Ids ended;
    for (int32_t row = 0; row < result.num_rows; ++row) {
      if (result.finish[row] != 0) ended.push_back(result.ids[row]);
    }
    return ended;
  }
  // Steps until nothing is left; the ids in the order in which they ended.
  Ids Drain(int32_t limit = 1000) {
    Ids order;
    while (limit-- > 0 && Step()) {
      for (const int64_t id : Ended()) order.push_back(id);
    }
    EXPECT_FALSE(scheduler->has_work());
    scheduler->CheckIntegrity();
    const SchedulerStats stats = scheduler->stats();
    EXPECT_EQ(stats.free_blocks, stats.total_blocks);
    return order;
  }

  std::unique_ptr<Scheduler> scheduler;
};

}  // namespace rtp_llm

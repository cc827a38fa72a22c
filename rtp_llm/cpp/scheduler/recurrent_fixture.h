// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {

inline constexpr int32_t kState = 8;  // a recurrent block; those of other groups have 4 tokens

// A scheduler with one full and one recurrent group, and short ways to say what it does to them.
class RecurrentTest : public SchedulerFixture {
 protected:
  using Counts = std::vector<int32_t>;
  using Tokens = std::vector<int32_t>;

  static SchedulerConfig Hybrid(int32_t states = 20, int32_t interval = 0) {
    SchedulerConfig config = DefaultConfig();
    config.max_draft_tokens = 0;
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

}  // namespace rtp_llm

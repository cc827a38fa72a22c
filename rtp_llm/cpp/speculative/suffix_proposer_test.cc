// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/speculative/suffix_proposer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace rtp_llm {
namespace {

using Tokens = std::vector<int32_t>;

constexpr size_t kNodes = size_t{1} << 20;

class SuffixProposerTest : public testing::Test {
 protected:
  static SuffixOptions Options(int32_t max_cached_requests, size_t max_nodes = kNodes) {
    SuffixOptions options;
    options.limits.num_tokens = 3;
    options.max_cached_requests = max_cached_requests;
    options.max_nodes = max_nodes;
    return options;
  }

  void Use(const SuffixOptions& options) { proposer_ = std::make_unique<SuffixProposer>(options); }
  void Add(const std::vector<int64_t>& ids, const Tokens& prompt, const std::string& scope = "") {
    proposer_->Add(ids.data(), ids.size(), prompt.data(), prompt.size(), scope);
  }
  void Observe(int64_t id, const Tokens& tokens, uint8_t finish = 0) {
    const auto count = static_cast<int32_t>(tokens.size());
    proposer_->Observe(&id, tokens.data(), &count, &finish, 1, count);
  }
  // Of one sequence; empty: none.
  Tokens Of(int64_t id) {
    const ProposedDrafts drafts = proposer_->Propose();
    for (size_t i = 0; i < drafts.ids.size(); ++i) {
      const int32_t* row = &drafts.tokens[3 * i];
      if (drafts.ids[i] == id) return {row, row + drafts.lengths[i]};
    }
    return {};
  }

  std::unique_ptr<SuffixProposer> proposer_ = std::make_unique<SuffixProposer>(Options(10));
};

TEST_F(SuffixProposerTest, ProposesFromPromptAndOutput) {
  Add({7}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Of(7), Tokens{});  // its prompt is not computed yet
  Observe(7, {1});
  EXPECT_EQ(Of(7), (Tokens{2}));  // no more than the match is long
  Observe(7, {2, 3});
  EXPECT_EQ(Of(7), (Tokens{4, 5, 6}));
  Observe(7, {8});
  EXPECT_EQ(Of(7), Tokens{});
  Observe(7, {9, 2, 3});
  EXPECT_EQ(Of(7), (Tokens{8, 9})) << "the latest of those equally frequent";
}

TEST_F(SuffixProposerTest, ProposesFromOutputsOfOthers) {
  Add({1}, {50, 51});
  Observe(1, {1, 2, 3, 4, 5});
  Observe(1, {}, 1);
  Add({2}, {60});
  Observe(2, {1, 2});
  EXPECT_EQ(Of(2), (Tokens{3, 4}));
  Observe(2, {3, 4});
  EXPECT_EQ(Of(2), (Tokens{5}));
}

TEST_F(SuffixProposerTest, OutputsOfOtherScopesAreNeverDrafts) {
  for (const int32_t max_cached : {1, 2, 4, 10}) {  // over several generations
    Use(Options(max_cached));
    const std::vector<std::string> scopes = {"a", "b", "", "ab"};
    for (int64_t round = 0; round < 12; ++round) {
      for (size_t i = 0; i < scopes.size(); ++i) {
        const auto first = static_cast<int32_t>(100 * (i + 1));
        const int64_t id = 10 * round + static_cast<int64_t>(i);
        Add({id}, {60}, scopes[i]);
        Observe(id, {1, 2, 3, first, first + 1, first + 2, first + 3});
      }
      for (size_t i = 0; i < scopes.size(); ++i) {
        const auto first = static_cast<int32_t>(100 * (i + 1));
        const int64_t id = 1000 + 10 * round + static_cast<int64_t>(i);
        Add({id}, {70}, scopes[i]);
        Observe(id, {1, 2, 3});
        const Tokens drafts = Of(id);
        EXPECT_TRUE(drafts.empty() || drafts == Tokens({first, first + 1, first + 2}));
        if (max_cached == 10 && round == 0) {
          EXPECT_FALSE(drafts.empty());
        }
        const int64_t begun = 10 * round + static_cast<int64_t>(i);
        Observe(begun, {1, 2, 3});
        for (const int32_t token : Of(begun)) EXPECT_EQ(token / 100, first / 100);
        Observe(begun, {}, 1);
        Observe(id, {}, 1);
      }
      EXPECT_LE(proposer_->num_cached(), std::max<size_t>(max_cached, 2) + 2 * scopes.size());
    }
  }
}

TEST_F(SuffixProposerTest, ScopesTogetherHaveTheBound) {
  Use(Options(8));
  for (int64_t id = 0; id < 200; ++id) {
    Add({id}, {5000}, std::to_string(id));
    Observe(id, {1, 2, 3, 4}, 1);
    EXPECT_LE(proposer_->num_cached(), 8);
  }
}

TEST_F(SuffixProposerTest, OutputsOfOthersCanBeLeftOut) {
  Use(Options(0));
  Add({1, 2}, {50, 51, 52});
  Observe(1, {1, 2, 3, 4, 5});
  Observe(2, {1, 2});
  EXPECT_EQ(Of(2), Tokens{});
  Observe(2, {50, 51});
  EXPECT_EQ(Of(2), (Tokens{52, 1}));
  EXPECT_EQ(proposer_->num_cached(), 0);
}

TEST_F(SuffixProposerTest, ForgetsTheOldestOutputs) {
  Use(Options(4));
  const auto output = [](int64_t id) {
    const auto first = static_cast<int32_t>(10 * id);
    return Tokens{first, first + 1, first + 2, first + 3};
  };
  for (int64_t id = 1; id <= 9; ++id) {
    Add({id}, {5000});
    Observe(id, output(id), 1);
    EXPECT_LE(proposer_->num_cached(), 4);
  }
  Add({100, 101}, {5000});
  Observe(100, {10, 11});
  Observe(101, {90, 91});
  EXPECT_EQ(Of(100), Tokens{});
  EXPECT_EQ(Of(101), (Tokens{92, 93}));
}

TEST_F(SuffixProposerTest, LongSequencesGoOnInTheNextTree) {
  Use(Options(2));
  Add({1, 2, 3}, {5000});
  for (int32_t i = 0; i < 100; ++i) {
    for (const int64_t id : {1, 2, 3}) Observe(id, {100 + i % 10});
  }
  for (const int64_t id : {1, 2, 3}) EXPECT_EQ(Of(id), (Tokens{100, 101, 102}));
}

TEST_F(SuffixProposerTest, MemoryHasABound) {
  Use(Options(1000000, 2000));
  std::mt19937 random(3);
  Add({1, 2}, {5000});
  for (int32_t i = 0; i < 5000; ++i) Observe(1 + i % 2, {static_cast<int32_t>(random() % 9)});
  for (int32_t i = 0; i < 20; ++i) Observe(1, {100 + i % 5});
  EXPECT_EQ(Of(1), (Tokens{100, 101, 102}));
  EXPECT_LE(proposer_->num_cached(), 4);
}

TEST_F(SuffixProposerTest, LongPromptsAreTakenInStepByStep) {
  Tokens prompt(10000);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i);
  Add({1, 2}, prompt);
  Observe(1, {1, 2, 3});
  Observe(2, {7});
  EXPECT_EQ(Of(1), Tokens{});
  EXPECT_EQ(Of(1), Tokens{});
  Observe(2, {8, 9});
  EXPECT_EQ(Of(1), (Tokens{4, 5, 6}));
  EXPECT_EQ(Of(2), (Tokens{10, 11, 12}));
}

TEST_F(SuffixProposerTest, SequencesOfOnePromptGoTheirOwnWays) {
  Use(Options(0));
  Add({1, 2, 3}, {1, 2, 3, 4, 5, 6});
  Observe(1, {1, 2});
  Observe(2, {2, 3});
  EXPECT_EQ(Of(1), (Tokens{3, 4}));
  EXPECT_EQ(Of(2), (Tokens{4, 5}));
  EXPECT_EQ(Of(3), Tokens{});
  Observe(3, {5});
  EXPECT_EQ(Of(3), (Tokens{6}));
}

TEST_F(SuffixProposerTest, ForksBeginWithWhatWasSaid) {
  const auto fork = [&](int64_t from, int64_t id, const Tokens& tokens) {
    proposer_->Fork(from, id, tokens.data(), tokens.size());
  };
  Add({1}, {1, 2, 3, 4}, "own");
  fork(1, 2, {1, 2, 3, 4, 5});
  Observe(1, {1, 2});
  fork(1, 3, {1, 2, 3, 4, 1, 3});
  fork(9, 4, {1, 2});
  EXPECT_EQ(proposer_->num_sequences(), 3u);
  Observe(2, {4});
  EXPECT_EQ(Of(2), Tokens{5});
  Observe(3, {4, 1});
  EXPECT_EQ(Of(3), (Tokens{3, 4, 1}));
  EXPECT_EQ(Of(1), (Tokens{3, 4}));
}

TEST_F(SuffixProposerTest, ForgetsWhoEnded) {
  Add({1, 2, 3, 4}, {1, 2, 3, 4, 5, 6});
  for (const int64_t id : {1, 2, 3}) Observe(id, {1, 2});
  Observe(2, {3}, 1);
  const std::vector<int64_t> aborted = {3, 4, 99};
  proposer_->End(aborted.data(), aborted.size());
  EXPECT_EQ(proposer_->num_sequences(), 1);
  EXPECT_EQ(proposer_->Propose().ids, std::vector<int64_t>{1});
  Observe(2, {1, 2});  // late tokens of nobody
  EXPECT_EQ(proposer_->num_sequences(), 1);
}

TEST(SuffixProposerErrors, RefusesNonsense) {
  const SuffixLimits limits[] = {{0, 1.0, 0.1}, {1, 0.0, 0.1}, {1, 1.0, 1.1}, {1, 1.0, -0.1}};
  for (const SuffixLimits& each : limits) {
    EXPECT_THROW(SuffixProposer({each, 24, 10, kNodes}), std::invalid_argument);
  }
  EXPECT_THROW(SuffixProposer({{}, 24, -1, kNodes}), std::invalid_argument);
  EXPECT_THROW(SuffixProposer({{}, 1, 10, kNodes}), std::invalid_argument);
}

}  // namespace
}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "rtp_llm/cpp/speculative/ngram_index.h"
#include "rtp_llm/cpp/speculative/ngram_proposer.h"

namespace rtp_llm {
namespace {

using Tokens = std::vector<int32_t>;

// The definition, by searching everything.
Tokens Searched(const Tokens& tokens, int32_t min_n, int32_t max_n, int32_t count) {
  const auto size = static_cast<int32_t>(tokens.size());
  for (int32_t n = std::min(max_n, size - 1); n >= min_n; --n) {
    for (int32_t end = n; end < size; ++end) {
      if (!std::equal(tokens.end() - n, tokens.end(), tokens.begin() + end - n)) continue;
      Tokens line(tokens.begin() + end, tokens.end());
      for (size_t i = 0; static_cast<int32_t>(line.size()) < count; ++i) line.push_back(line[i]);
      line.resize(count);
      return line;
    }
  }
  return {};
}

Tokens Proposed(const NgramIndex& index, int32_t count) {
  Tokens out(count);
  return index.Propose(count, out.data()) ? out : Tokens{};
}

TEST(NgramIndexTest, FindsWhatTheDefinitionSays) {
  std::mt19937 random(1);
  for (const auto& [min_n, max_n] : {std::pair{1, 1}, {1, 4}, {2, 2}, {2, 5}, {5, 5}}) {
    for (const int32_t vocabulary : {2, 5, 50}) {
      NgramIndex index(min_n, max_n);
      Tokens tokens;
      while (tokens.size() < 600) {
        Tokens more(random() % 7);
        for (int32_t& token : more) token = random() % vocabulary;
        index.Append(more.data(), more.size());
        tokens.insert(tokens.end(), more.begin(), more.end());
        const int32_t count = 1 + random() % 7;
        ASSERT_EQ(Proposed(index, count), Searched(tokens, min_n, max_n, count))
            << tokens.size() << " tokens, n-grams of " << min_n << " to " << max_n;
      }
    }
  }
}

TEST(NgramIndexTest, RepeatsWhatRepeatsItself) {
  NgramIndex index(2, 3);
  const Tokens tokens = {9, 1, 2, 1, 2};
  index.Append(tokens.data(), tokens.size());
  EXPECT_EQ(Proposed(index, 5), (Tokens{1, 2, 1, 2, 1}));
}

TEST(NgramIndexTest, HasNothingToSayOfNothing) {
  NgramIndex index(1, 3);
  EXPECT_EQ(Proposed(index, 3), Tokens{});
  const int32_t token = 4;
  index.Append(&token, 1);
  EXPECT_EQ(Proposed(index, 3), Tokens{});
}

TEST(NgramIndexTest, RefusesOtherSizes) {
  EXPECT_THROW(NgramIndex(0, 3), std::invalid_argument);
  EXPECT_THROW(NgramIndex(3, 2), std::invalid_argument);
}

class NgramProposerTest : public testing::Test {
 protected:
  void Add(const std::vector<int64_t>& ids, const Tokens& prompt) {
    proposer_.Add(ids.data(), ids.size(), prompt.data(), prompt.size());
  }
  void Observe(int64_t id, const Tokens& tokens, uint8_t finish = 0) {
    const auto count = static_cast<int32_t>(tokens.size());
    proposer_.Observe(&id, tokens.data(), &count, &finish, 1, count);
  }
  // Of one sequence; empty: none.
  Tokens Of(int64_t id) {
    const ProposedDrafts drafts = proposer_.Propose();
    for (size_t i = 0; i < drafts.ids.size(); ++i) {
      if (drafts.ids[i] == id) return {&drafts.tokens[3 * i], &drafts.tokens[3 * i + 3]};
    }
    return {};
  }

  NgramProposer proposer_{2, 4, 3};
};

TEST_F(NgramProposerTest, ProposesFromPromptAndOutput) {
  Add({7}, {1, 2, 3, 4, 5});
  EXPECT_EQ(Of(7), Tokens{});  // its prompt is not computed yet
  Observe(7, {1, 2});
  EXPECT_EQ(Of(7), (Tokens{3, 4, 5}));
  Observe(7, {8});
  EXPECT_EQ(Of(7), Tokens{});
  Observe(7, {9, 1, 2, 8});
  EXPECT_EQ(Of(7), (Tokens{9, 1, 2}));
}

TEST_F(NgramProposerTest, SequencesOfOnePromptGoTheirOwnWays) {
  Add({1, 2, 3}, {1, 2, 3, 4, 5, 6});
  Observe(1, {1, 2});
  Observe(2, {2, 3});
  EXPECT_EQ(Of(1), (Tokens{3, 4, 5}));
  EXPECT_EQ(Of(2), (Tokens{4, 5, 6}));
  EXPECT_EQ(Of(3), Tokens{});
  Observe(3, {3, 4});
  EXPECT_EQ(Of(3), (Tokens{5, 6, 3}));
}

TEST_F(NgramProposerTest, ForgetsWhoEnded) {
  Add({1, 2, 3}, {1, 2, 3, 4, 5, 6});
  for (const int64_t id : {1, 2, 3}) Observe(id, {1, 2});
  Observe(2, {3}, 1);
  const std::vector<int64_t> aborted = {3, 99};
  proposer_.End(aborted.data(), aborted.size());
  EXPECT_EQ(proposer_.num_sequences(), 1);
  EXPECT_EQ(proposer_.Propose().ids, std::vector<int64_t>{1});
  Observe(2, {1, 2});  // late tokens of nobody
  EXPECT_EQ(proposer_.num_sequences(), 1);
}

TEST(NgramProposerErrors, RefusesDraftsOfNothing) {
  EXPECT_THROW(NgramProposer(1, 2, 0), std::invalid_argument);
}

}  // namespace
}  // namespace rtp_llm

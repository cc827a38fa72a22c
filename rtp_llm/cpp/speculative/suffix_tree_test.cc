// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/speculative/suffix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

namespace rtp_llm {
namespace {

using Tokens = std::vector<int32_t>;
constexpr size_t kNodes = 1 << 20;

// The definition, by searching everything.
class Searched {
 public:
  explicit Searched(int32_t depth) : depth_(depth) {}

  void Append(size_t sequence, int32_t token) {
    texts_.resize(std::max(texts_.size(), sequence + 1));
    texts_[sequence].push_back({token, clock_++});
  }

  // Proposes after the end of `text`, which need not be one of the sequences.
  SuffixDraft Propose(const SuffixLimits& limits, const Tokens& text) const {
    SuffixDraft best;
    for (auto n = std::min<size_t>(depth_ - 1, text.size()); n >= 1; --n) {
      Tokens run(text.end() - n, text.end());
      const auto fitting = static_cast<int32_t>(n * limits.max_spec_factor + 1e-6);
      const int32_t count =
          std::min({limits.num_tokens, fitting, depth_ - static_cast<int32_t>(n)});
      SuffixDraft draft = Walk(limits, count, run);
      if (draft.score > best.score) best = draft;
    }
    return best;
  }

  Tokens TextOf(size_t sequence) const {
    Tokens text;
    for (const auto& [token, time] : texts_[sequence]) text.push_back(token);
    return text;
  }

 private:
  struct Followed {
    int32_t count = 0;
    int64_t latest = 0;
  };

  SuffixDraft Walk(const SuffixLimits& limits, int32_t count, Tokens run) const {
    SuffixDraft draft;
    double prob = 1.0;
    for (; count > 0; --count) {
      const std::map<int32_t, Followed> followed = WhatFollowed(run);
      if (followed.empty()) break;
      int32_t all = 0;
      auto best = followed.begin();
      for (auto it = followed.begin(); it != followed.end(); ++it) {
        all += it->second.count;
        if (std::pair(it->second.count, it->second.latest) >
            std::pair(best->second.count, best->second.latest)) {
          best = it;
        }
      }
      prob *= static_cast<double>(best->second.count) / all;
      if (prob < limits.min_token_prob) break;
      draft.tokens.push_back(best->first);
      draft.score += prob;
      run.push_back(best->first);
    }
    return draft;
  }

  std::map<int32_t, Followed> WhatFollowed(const Tokens& run) const {
    std::map<int32_t, Followed> followed;
    for (const auto& text : texts_) {
      for (size_t end = run.size(); end < text.size(); ++end) {
        const auto same = [](int32_t a, const std::pair<int32_t, int64_t>& b) {
          return a == b.first;
        };
        if (!std::equal(run.begin(), run.end(), text.begin() + (end - run.size()), same)) continue;
        Followed& one = followed[text[end].first];
        ++one.count;
        one.latest = std::max(one.latest, text[end].second);
      }
    }
    return followed;
  }

  int32_t depth_;
  int64_t clock_ = 0;
  std::vector<std::vector<std::pair<int32_t, int64_t>>> texts_;  // and when it came
};

SuffixDraft Proposed(const SuffixTree& tree, const SuffixLimits& limits,
                     SuffixTree::Cursor* cursor) {
  SuffixDraft best;
  tree.Propose(limits, cursor, &best);
  return best;
}

// Some text that repeats itself now and then, and a token that seldom occurs.
Tokens RandomText(std::mt19937* random, int32_t vocabulary, size_t length) {
  Tokens text;
  while (text.size() < length) {
    if (!text.empty() && (*random)() % 4 == 0) {
      const size_t begin = (*random)() % text.size();
      const size_t count = 1 + (*random)() % 12;
      for (size_t i = begin; i < std::min(begin + count, text.size()); ++i) {
        text.push_back(text[i]);
        if (text.size() == length) break;
      }
    } else {
      text.push_back((*random)() % vocabulary);
    }
  }
  return text;
}

struct Case {
  int32_t depth;
  int32_t vocabulary;
  SuffixLimits limits;
};

const Case kCases[] = {{2, 2, {1, 1.0, 0.0}},    {3, 3, {7, 2.0, 0.1}},    {6, 2, {3, 1.0, 0.1}},
                       {24, 2, {7, 1.0, 0.1}},   {24, 40, {63, 4.0, 0.0}}, {8, 4, {3, 0.5, 0.6}},
                       {24, 1000, {7, 1.0, 0.1}}};

TEST(SuffixTreeTest, ProposesWhatTheDefinitionSays) {
  std::mt19937 random(1);
  for (const auto& [depth, vocabulary, limits] : kCases) {
    SuffixTree tree(depth, kNodes);
    Searched searched(depth);
    std::vector<SuffixTree::Cursor> ends(3);
    for (SuffixTree::Cursor& end : ends) end = tree.Begin();
    const Tokens text = RandomText(&random, vocabulary, 240);
    for (const int32_t token : text) {
      const size_t sequence = random() % ends.size();
      tree.Append(token, &ends[sequence]);
      searched.Append(sequence, token);
      const SuffixDraft found = Proposed(tree, limits, &ends[sequence]);
      const SuffixDraft expected = searched.Propose(limits, searched.TextOf(sequence));
      ASSERT_EQ(found.tokens, expected.tokens) << "depth " << depth << ", of " << vocabulary;
      ASSERT_EQ(found.score, expected.score);
    }
  }
}

TEST(SuffixTreeTest, FollowsTextThatItDoesNotTakeIn) {
  std::mt19937 random(2);
  for (const auto& [depth, vocabulary, limits] : kCases) {
    SuffixTree tree(depth, kNodes);
    Searched searched(depth);
    SuffixTree::Cursor other = tree.Begin();
    SuffixTree::Cursor end = tree.Begin();
    const Tokens text = RandomText(&random, vocabulary, 400);
    Tokens own;
    for (size_t i = 0; i < text.size(); ++i) {
      if (i < 150) {
        tree.Append(text[i], &other);
        searched.Append(0, text[i]);
      } else if (i < 200) {
        tree.Append(text[i], &end);
        searched.Append(1, text[i]);
        own.push_back(text[i]);
      } else {
        tree.Detach(&end);
        tree.Append(text[i], &end);
        own.push_back(text[i]);
        const SuffixDraft found = Proposed(tree, limits, &end);
        const SuffixDraft expected = searched.Propose(limits, own);
        ASSERT_EQ(found.tokens, expected.tokens) << "depth " << depth << ", of " << vocabulary;
        ASSERT_EQ(found.score, expected.score);
      }
    }
    EXPECT_EQ(tree.num_sequences(), 2);
  }
}

TEST(SuffixTreeTest, RootsDoNotSeeEachOther) {
  std::mt19937 random(4);
  for (const auto& [depth, vocabulary, limits] : kCases) {
    SuffixTree tree(depth, kNodes);
    const std::vector<int32_t> roots = {SuffixTree::kRoot, tree.AddRoot(), tree.AddRoot()};
    std::vector<Searched> searched(roots.size(), Searched(depth));
    std::vector<SuffixTree::Cursor> ends;
    for (size_t i = 0; i < 6; ++i) ends.push_back(tree.Begin(roots[i % 3]));
    for (const int32_t token : RandomText(&random, vocabulary, 300)) {
      const size_t sequence = random() % ends.size();
      tree.Append(token, &ends[sequence]);
      Searched& own = searched[sequence % 3];
      own.Append(sequence / 3, token);
      const SuffixDraft found = Proposed(tree, limits, &ends[sequence]);
      const SuffixDraft expected = own.Propose(limits, own.TextOf(sequence / 3));
      ASSERT_EQ(found.tokens, expected.tokens) << "depth " << depth << ", of " << vocabulary;
      ASSERT_EQ(found.score, expected.score);
    }
  }
}

TEST(SuffixTreeTest, HasNothingForAnUnknownRoot) {
  SuffixTree tree(4, kNodes);
  SuffixTree::Cursor end = tree.Begin();
  for (const int32_t token : {1, 2, 3, 1, 2, 3}) tree.Append(token, &end);
  SuffixTree::Cursor other = tree.BeginToFollow(SuffixTree::kNone);
  for (const int32_t token : {1, 2}) tree.Append(token, &other);
  EXPECT_EQ(Proposed(tree, {3, 1.0, 0.1}, &other).tokens, Tokens{});
}

TEST(SuffixTreeTest, OnlyFollowsOnceItIsFull) {
  SuffixTree tree(4, 40);
  SuffixTree::Cursor end = tree.Begin();
  int32_t token = 0;
  while (!tree.full()) tree.Append(token++, &end);
  const size_t nodes = tree.num_nodes();
  EXPECT_LE(nodes, 40);
  for (const int32_t old : {0, 1, 2}) tree.Append(old, &end);
  EXPECT_EQ(tree.num_nodes(), nodes);
  EXPECT_EQ(Proposed(tree, {3, 1.0, 0.1}, &end).tokens, (Tokens{3, 4}));
}

TEST(SuffixTreeTest, TextOfOneTokenTakesFewNodes) {
  SuffixTree tree(24, kNodes);
  SuffixTree::Cursor end = tree.Begin();
  for (int32_t i = 0; i < 100000; ++i) tree.Append(5, &end);
  EXPECT_LE(tree.num_nodes(), 25);
  EXPECT_EQ(Proposed(tree, {7, 1.0, 0.1}, &end).tokens, Tokens(7, 5));
}

TEST(SuffixTreeTest, NewTextTakesANodeForEachToken) {
  SuffixTree tree(24, kNodes);
  SuffixTree::Cursor end = tree.Begin();
  for (int32_t i = 0; i < 5000; ++i) tree.Append(i, &end);
  EXPECT_EQ(tree.num_nodes(), 5001);
  EXPECT_EQ(Proposed(tree, {7, 1.0, 0.1}, &end).tokens, Tokens{});
}

TEST(SuffixTreeTest, RefusesNonsense) {
  EXPECT_THROW(SuffixTree(1, kNodes), std::invalid_argument);
  EXPECT_THROW(SuffixTree(24, 10), std::invalid_argument);
}

}  // namespace
}  // namespace rtp_llm

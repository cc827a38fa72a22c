// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/beams/continuations.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace rtp_llm {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// Two groups of four candidates, the second of which has three.
struct ContinuationsTest : testing::Test {
  const std::vector<int32_t> parents = {0, 1, 1, 0, 1, 0, 1, -1};
  const std::vector<int32_t> tokens = {5, 6, 7, 8, 6, 5, 9, -1};
  const std::vector<float> totals = {-1, -2, -3, -4, -5, -6, -7, kNone};
  const std::vector<float> logprobs = {-0.1f, -0.2f, -0.3f, -0.4f, -0.5f, -0.6f, -0.7f, kNone};
  const std::vector<int32_t> stops = {6};
  const BeamCandidates candidates = {parents.data(), tokens.data(), totals.data(), logprobs.data(),
                                     4};

  BeamGroupStep Group(int64_t row) const { return {row, 2, 2, false, stops.data(), 1, nullptr}; }
};

TEST_F(ContinuationsTest, TheBestOnesThatDoNotEndGoOn) {
  const BeamContinuations found = ChooseContinuations(candidates, {Group(1), Group(0)});
  EXPECT_EQ(found.counts, (std::vector<int32_t>{2, 2}));
  EXPECT_EQ(found.parents, (std::vector<int32_t>{0, 1, 0, 1}));
  EXPECT_EQ(found.tokens, (std::vector<int32_t>{5, 9, 5, 7}));
  EXPECT_EQ(found.scores, (std::vector<float>{-6, -7, -1, -3}));
  EXPECT_EQ(found.logprobs, (std::vector<float>{-0.6f, -0.7f, -0.1f, -0.3f}));
  ASSERT_EQ(found.ended.size(), 2u);
  EXPECT_EQ(found.ended[0].group, 0);
  EXPECT_EQ(found.ended[0].token, 6);
  EXPECT_EQ(found.ended[1].total, -2);
  EXPECT_TRUE(found.ended[1].stopped);
}

TEST_F(ContinuationsTest, ItIsACopyWhereThereAreTooFew) {
  BeamGroupStep group = Group(1);
  group.width = 4;
  group.next_width = 3;
  const BeamContinuations found = ChooseContinuations(candidates, {group});
  EXPECT_EQ(found.counts, (std::vector<int32_t>{2}));
  EXPECT_EQ(found.tokens, (std::vector<int32_t>{5, 9, 9, 9}));
  EXPECT_EQ(found.scores, (std::vector<float>{-6, -7, kNone, kNone}));
}

TEST_F(ContinuationsTest, TextsEndSequencesToo) {
  const std::vector<uint8_t> texts = {1, 0, 0, 0};
  BeamGroupStep group = Group(0);
  group.text_stops = texts.data();
  const BeamContinuations found = ChooseContinuations(candidates, {group});
  EXPECT_EQ(found.tokens, (std::vector<int32_t>{7, 8}));
  ASSERT_EQ(found.ended.size(), 2u);
  EXPECT_EQ(found.ended[0].token, 5);
}

TEST_F(ContinuationsTest, AllOfThemEndWithTheLastStep) {
  BeamGroupStep group = Group(0);
  group.at_end = true;
  const BeamContinuations found = ChooseContinuations(candidates, {group});
  EXPECT_EQ(found.counts, (std::vector<int32_t>{0}));
  ASSERT_EQ(found.ended.size(), 2u) << "no more than there are beams";
  EXPECT_FALSE(found.ended[0].stopped);
  EXPECT_TRUE(found.ended[1].stopped);
}

}  // namespace
}  // namespace rtp_llm

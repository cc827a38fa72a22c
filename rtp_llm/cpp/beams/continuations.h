// SPDX-License-Identifier: Apache-2.0
// The step of beam searches: which continuations of their beams go on, and which ones end.
#pragma once

#include <cstdint>
#include <vector>

namespace rtp_llm {

// The best continuations of groups of beams, [groups, k] each, the best one first; token -1: there
// is none. Parents are counted from the first beam of the group.
struct BeamCandidates {
  const int32_t* parents;
  const int32_t* tokens;
  const float* totals;
  const float* logprobs;
  int64_t k;
};

// Row `row` of the candidates is for a group that had `width` beams at most and has `next_width`
// after this step, or none where it is `at_end`. It ends with one of `stop_ids`, and where
// `text_stops` [k] says so (null: nowhere).
struct BeamGroupStep {
  int64_t row;
  int32_t width, next_width;
  bool at_end;
  const int32_t* stop_ids;
  int64_t num_stops;
  const uint8_t* text_stops;
};

// A sequence of a group that ends with this step; `stopped` by its token or text.
struct EndedBeam {
  int32_t group, parent, token;
  float total, logprob;
  bool stopped;
};

// Beams of all groups, one group after the other. The first `counts[g]` of a group's width are the
// best candidates that do not end; the others are copies of the last one, with scores of -inf.
// A group whose count is 0 has no parents and tokens to go on with.
struct BeamContinuations {
  std::vector<int32_t> parents, tokens;
  std::vector<float> logprobs, scores;
  std::vector<int32_t> counts;
  std::vector<EndedBeam> ended;  // among the best next_width candidates, the best one first
};

BeamContinuations ChooseContinuations(const BeamCandidates& candidates,
                                      const std::vector<BeamGroupStep>& groups);

}  // namespace rtp_llm

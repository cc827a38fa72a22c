// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/beams/continuations.h"

#include <algorithm>
#include <limits>

namespace rtp_llm {
namespace {

// Appends beam after beam to what goes on.
class GroupWriter {
 public:
  GroupWriter(const BeamCandidates& candidates, const BeamGroupStep& group, int32_t index,
              BeamContinuations* out)
      : candidates_(candidates), group_(group), index_(index), out_(out) {}

  void Write() {
    for (int64_t i = 0; i < candidates_.k && candidates_.tokens[At(i)] >= 0; ++i) {
      const bool stopped = IsStop(i);
      if (stopped || group_.at_end) {
        if (i < group_.next_width) End(At(i), stopped);
      } else if (count_ < group_.next_width) {
        GoOn(At(i), candidates_.totals[At(i)]);
        last_ = At(i);
        ++count_;
      }
    }
    out_->counts.push_back(count_);
    for (int32_t i = count_; i < group_.width; ++i) {
      GoOn(last_, -std::numeric_limits<float>::infinity());
    }
  }

 private:
  int64_t At(int64_t candidate) const { return group_.row * candidates_.k + candidate; }

  bool IsStop(int64_t candidate) const {
    if (group_.text_stops != nullptr && group_.text_stops[candidate] != 0) return true;
    const int32_t* const end = group_.stop_ids + group_.num_stops;
    return std::find(group_.stop_ids, end, candidates_.tokens[At(candidate)]) != end;
  }

  void GoOn(int64_t at, float score) {
    out_->parents.push_back(candidates_.parents[at]);
    out_->tokens.push_back(candidates_.tokens[at]);
    out_->logprobs.push_back(candidates_.logprobs[at]);
    out_->scores.push_back(score);
  }

  void End(int64_t at, bool stopped) {
    out_->ended.push_back({index_, candidates_.parents[at], candidates_.tokens[at],
                           candidates_.totals[at], candidates_.logprobs[at], stopped});
  }

  const BeamCandidates& candidates_;
  const BeamGroupStep& group_;
  const int32_t index_;
  BeamContinuations* const out_;
  int32_t count_ = 0;
  int64_t last_ = At(0);
};

}  // namespace

BeamContinuations ChooseContinuations(const BeamCandidates& candidates,
                                      const std::vector<BeamGroupStep>& groups) {
  BeamContinuations out;
  for (size_t g = 0; g < groups.size(); ++g) {
    GroupWriter(candidates, groups[g], static_cast<int32_t>(g), &out).Write();
  }
  return out;
}

}  // namespace rtp_llm

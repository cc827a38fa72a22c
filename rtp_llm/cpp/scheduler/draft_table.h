// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "rtp_llm/cpp/scheduler/planner.h"

namespace rtp_llm {

// Owns the arrays of DraftTokens, made from the drafts of each sequence; for tests.
class DraftTable {
 public:
  explicit DraftTable(const std::map<int64_t, std::vector<int32_t>>& drafts) {
    for (const auto& [id, tokens] : drafts) {
      width_ = std::max(width_, static_cast<int32_t>(tokens.size()));
    }
    for (const auto& [id, tokens] : drafts) {
      ids_.push_back(id);
      lengths_.push_back(static_cast<int32_t>(tokens.size()));
      tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
      tokens_.resize(ids_.size() * width_, 77);  // nothing past the length is read
    }
  }

  DraftTokens view() const {
    return {static_cast<int32_t>(ids_.size()), width_, ids_.data(), tokens_.data(),
            lengths_.data()};
  }

 private:
  int32_t width_ = 0;
  std::vector<int64_t> ids_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> lengths_;
};

}  // namespace rtp_llm

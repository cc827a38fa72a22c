// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace rtp_llm {

// Drafts of one step: the first lengths[i] of row i of `tokens` [ids, width] follow sequence
// ids[i].
struct ProposedDrafts {
  std::vector<int64_t> ids;
  std::vector<int32_t> tokens;
  std::vector<int32_t> lengths;
};

}  // namespace rtp_llm

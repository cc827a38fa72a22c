// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "rtp_llm/cpp/scheduler/scheduler_fixture.h"

namespace rtp_llm {

using Tokens = std::vector<int32_t>;

inline RequestOptions Beams(int32_t max_tokens, int32_t priority = 0) {
  RequestOptions options;
  options.max_tokens = max_tokens;
  options.priority = priority;
  options.overlap = false;
  options.beam_search = true;
  return options;
}

class ReorderTest : public SchedulerFixture {
 protected:
  Tokens OutputOf(int64_t id) {
    const KnownTokens known = scheduler->TokensOf(id);
    return Tokens(known.tokens.begin() + known.prompt_length, known.tokens.end());
  }
  int32_t BlockOf(int32_t row, int32_t index) {
    const Batch::GroupArrays& arrays = scheduler->batch().groups[0];
    return arrays.block_table[static_cast<size_t>(row) * arrays.table_width + index];
  }
  int32_t Copies() { return scheduler->batch().groups[0].num_copies; }
};

}  // namespace rtp_llm

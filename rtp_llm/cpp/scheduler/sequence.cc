// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/scheduler/sequence.h"

#include <algorithm>

namespace rtp_llm {
namespace {

bool Contains(const std::vector<int32_t>& values, int32_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

FinishReason Sequence::CheckFinish() const {
  const int32_t token = tokens.back();
  if (output_length() >= options->min_tokens) {
    if (Contains(options->eos_token_ids, token)) return FinishReason::kEos;
    if (Contains(options->stop_token_ids, token)) return FinishReason::kStopToken;
  }
  return length >= max_length ? FinishReason::kLength : FinishReason::kNone;
}

}  // namespace rtp_llm

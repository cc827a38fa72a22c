// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/scheduler/config.h"

#include <stdexcept>
#include <string>

namespace rtp_llm {
namespace {

constexpr int32_t kMaxSequences = 1 << 16;
constexpr int32_t kMaxTokens = 1 << 24;
constexpr int32_t kMaxDraftTokens = 63;
constexpr int32_t kMaxStages = 1024;

void RequireRange(const char* name, int32_t value, int32_t low, int32_t high) {
  if (value >= low && value <= high) return;
  throw std::invalid_argument(std::string(name) + "=" + std::to_string(value) + " must be from " +
                              std::to_string(low) + " to " + std::to_string(high));
}

}  // namespace

void SchedulerConfig::Validate() const {
  RequireRange("max_running", max_running, 1, kMaxSequences);
  RequireRange("max_queued", max_queued, 1, kMaxSequences);
  RequireRange("max_batch_tokens", max_batch_tokens, 1, kMaxTokens);
  RequireRange("max_model_len", max_model_len, 2, kMaxTokens);
  RequireRange("hash_bits", hash_bits, 0, 128);
  RequireRange("aging_steps", aging_steps, 1, 1 << 20);
  RequireRange("max_draft_tokens", max_draft_tokens, 0, kMaxDraftTokens);
  RequireRange("stages", stages, 1, kMaxStages);
  if (stages > 1) RequireRange("max_draft_tokens with stages", max_draft_tokens, 0, 0);
  RequireRange("recurrent_snapshot_interval", recurrent_snapshot_interval, 0, kMaxTokens);
  if (groups.empty()) {
    RequireRange("max_draft_tokens without cache groups", max_draft_tokens, 0, 0);
    RequireRange("stages without cache groups", stages, 1, 1);
    RequireRange("max_batch_tokens without cache groups, whose prompts are computed in one step,",
                 max_batch_tokens, max_model_len, kMaxTokens);
  }
  for (const CacheGroup& group : groups) {
    if (!group.IsRecurrent() || group.block_size <= max_batch_tokens) continue;
    throw std::invalid_argument(
        "max_batch_tokens=" + std::to_string(max_batch_tokens) +
        " must be at least the recurrent groups' block_size=" + std::to_string(group.block_size) +
        ": a prompt is cut into chunks that end on a block");
  }
}

}  // namespace rtp_llm

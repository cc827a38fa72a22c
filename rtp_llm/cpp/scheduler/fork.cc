// SPDX-License-Identifier: Apache-2.0
// Sequences that go on from another one's tokens.

#include <string>
#include <unordered_set>

#include "rtp_llm/cpp/cache/require.h"
#include "rtp_llm/cpp/scheduler/scheduler.h"

namespace rtp_llm {

void Scheduler::CheckFork(int64_t id, const std::vector<int64_t>& ids,
                          const std::vector<int32_t>& last_tokens) const {
  const int32_t slot = sequences_.Find(id);
  const std::string name = "fork: sequence " + std::to_string(id);
  Require(slot >= 0, name + " does not exist");
  const Sequence& parent = sequences_[slot];
  const bool has_output = static_cast<int32_t>(parent.tokens.size()) > parent.prompt_length;
  Require(has_output && parent.followers.empty(), name + " has no output yet");
  Require(!parent.is_pending(), name + " has a token that is not committed");
  Require(last_tokens.empty() || last_tokens.size() == ids.size(),
          "fork: " + std::to_string(last_tokens.size()) + " last_tokens for " +
              std::to_string(ids.size()) + " ids");
  for (const int32_t token : last_tokens) {
    Require(token >= 0, "fork: token " + std::to_string(token) + " is negative");
  }
  std::unordered_set<int64_t> seen;
  for (const int64_t each : ids) {
    Require(seen.insert(each).second && sequences_.Find(each) < 0,
            "fork: id " + std::to_string(each) + " is in use");
  }
}

std::vector<int32_t> Scheduler::Fork(int64_t id, const std::vector<int64_t>& ids,
                                     const std::vector<int32_t>& last_tokens) {
  CheckFork(id, ids, last_tokens);
  Sequence& parent = sequences_[sequences_.Find(id)];
  CheckPlace(static_cast<int32_t>(ids.size()), parent.options->tenant);
  std::vector<int32_t> slots;
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t slot = AddSequence(ids[i], parent.prompt_length, parent.options);
    Sequence& child = sequences_[slot];
    child.rank.key = parent.rank.key;
    Inherit(parent, &child);
    child.length = static_cast<int32_t>(child.tokens.size());
    if (!last_tokens.empty()) child.tokens.back() = last_tokens[i];
    const bool runs = SharesCache(parent) && sequences_.running_places < config_.max_running;
    child.state = runs ? SequenceState::kRunning : SequenceState::kWaiting;
    if (runs) StartFork(&parent, &child);
    sequences_.Insert(slot);
    ++sequences_.PlacesOf(child.state);
    slots.push_back(slot);
  }
  return slots;
}

KnownTokens Scheduler::TokensOf(int64_t id) const {
  const int32_t slot = sequences_.Find(id);
  Require(slot >= 0, "sequence " + std::to_string(id) + " does not exist");
  const Sequence& sequence = sequences_[slot];
  return {slot, sequence.prompt_length, sequence.tokens};
}

void Scheduler::Inherit(const Sequence& parent, Sequence* child) {
  child->admitted = parent.admitted;
  child->charged = true;
  child->cached_tokens = parent.cached_tokens;
  child->queue_seconds = parent.queue_seconds;
  child->tokens = parent.tokens;
}

// Whether all that the next step of a fork reads is there and stays there.
bool Scheduler::SharesCache(const Sequence& parent) const {
  if (parent.state != SequenceState::kRunning || !parent.decoding) return false;
  if (parent.computed + 1 != static_cast<int32_t>(parent.tokens.size())) return false;
  return parent.step_tokens == 0 || cache_.KeepsStates(parent.cache);
}

void Scheduler::StartFork(Sequence* parent, Sequence* child) {
  parent->cache.may_share_tail = true;
  child->decoding = true;
  child->computed = parent->computed;
  cache_.Fork(parent->cache, parent->computed, parent->step_tokens > 0, &child->cache);
}

}  // namespace rtp_llm

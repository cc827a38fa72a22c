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

// What takes the place of a beam; its cache holds something only if it `runs`. `stays`: it goes on
// in the same place.
struct Scheduler::Continuation {
  std::vector<int32_t> tokens;
  SequenceCache cache;
  int32_t computed = 0;
  bool runs = false;
  bool stays = false;
};

void Scheduler::CheckReorder(const std::vector<int64_t>& ids, const std::vector<int32_t>& parents,
                             const std::vector<int32_t>& last_tokens) const {
  const size_t count = ids.size();
  Require(parents.size() == count && last_tokens.size() == count,
          "reorder: " + std::to_string(parents.size()) + " parents and " +
              std::to_string(last_tokens.size()) + " last_tokens for " + std::to_string(count) +
              " ids");
  std::unordered_set<int64_t> seen;
  int32_t length = -1;
  for (size_t i = 0; i < count; ++i) {
    const std::string name = "reorder: sequence " + std::to_string(ids[i]);
    const int32_t slot = sequences_.Find(ids[i]);
    Require(slot >= 0 && seen.insert(ids[i]).second, name + " does not exist, or occurs twice");
    const Sequence& sequence = sequences_[slot];
    const bool started = sequence.leader < 0 && sequence.followers.empty();
    Require(sequence.options->beam_search && started, name + " is not a beam that has begun");
    if (length < 0) length = sequence.known_tokens();
    Require(sequence.known_tokens() == length, name + " has another length than the others");
    Require(length + 1 < sequence.max_length, name + " is as long as it may be");
    Require(parents[i] >= 0 && parents[i] < static_cast<int32_t>(count),
            "reorder: parent " + std::to_string(parents[i]) + " is not one of the ids");
    Require(last_tokens[i] >= 0,
            "reorder: token " + std::to_string(last_tokens[i]) + " is negative");
  }
}

void Scheduler::Reorder(const std::vector<int64_t>& ids, const std::vector<int32_t>& parents,
                        const std::vector<int32_t>& last_tokens) {
  CheckReorder(ids, parents, last_tokens);
  std::vector<Continuation> continuations;
  for (size_t i = 0; i < ids.size(); ++i) {
    Sequence& parent = sequences_[sequences_.Find(ids[parents[i]])];
    const bool stays = parents[i] == static_cast<int32_t>(i);
    continuations.push_back(Continue(&parent, last_tokens[i], stays));
  }
  for (size_t i = 0; i < ids.size(); ++i) Replace(sequences_.Find(ids[i]), &continuations[i]);
}

Scheduler::Continuation Scheduler::Continue(Sequence* parent, int32_t last_token, bool stays) {
  Continuation made;
  const int32_t length = parent->known_tokens();
  made.tokens.assign(parent->tokens.begin(), parent->tokens.begin() + length);
  made.tokens.push_back(last_token);
  made.runs = parent->awaits_reorder;
  made.stays = made.runs && stays;
  if (!made.runs) return made;
  made.computed = parent->computed;
  if (made.stays) return made;
  parent->cache.may_share_tail = true;
  OpenCache(*parent->options, &made.cache);
  cache_.Fork(parent->cache, made.computed, /*in_step=*/false, &made.cache);
  return made;
}

void Scheduler::Replace(int32_t slot, Continuation* by) {
  Sequence& sequence = sequences_[slot];
  if (!by->stays) {
    if (!sequence.awaits_reorder) sequences_.Renew(slot);  // it may be in a batch in flight
    const bool was_running = sequence.state == SequenceState::kRunning;
    if (by->runs && !was_running && sequences_.running_places == config_.max_running) {
      cache_.Close(&by->cache);
      by->runs = false;
    }
    cache_.Close(&sequence.cache);
    if (by->runs) {
      std::swap(sequence.cache, by->cache);
    } else {
      OpenCache(*sequence.options, &sequence.cache);
      by->computed = 0;
    }
    const auto state = by->runs ? SequenceState::kRunning : SequenceState::kWaiting;
    if (sequence.state != state) sequences_.Move(slot, state);
  }
  sequence.awaits_reorder = false;
  sequence.waits_for_commit = false;
  sequence.decoding = by->runs;
  sequence.pending_row = -1;
  sequence.step_tokens = 0;
  sequence.computed = by->computed;
  sequence.tokens = std::move(by->tokens);
  sequence.length = static_cast<int32_t>(sequence.tokens.size());
}

}  // namespace rtp_llm

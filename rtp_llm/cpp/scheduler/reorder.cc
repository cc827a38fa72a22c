// SPDX-License-Identifier: Apache-2.0
// Beams that go on from their parents.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "rtp_llm/cpp/scheduler/scheduler.h"

namespace rtp_llm {

// What takes the place of a beam; its cache holds something only if it `runs`. `stays`: it goes on
// in the same place.
struct Scheduler::Continuation {
  std::vector<int32_t> tokens;
  SequenceCache cache;
  int32_t computed = 0;
  bool runs = false;
  bool stays = false;
};

std::vector<int32_t> Scheduler::CheckReorder(const std::vector<int64_t>& ids,
                                             const std::vector<int32_t>& parents,
                                             const std::vector<int32_t>& last_tokens) const {
  const size_t count = ids.size();
  if (parents.size() != count || last_tokens.size() != count) {
    throw std::invalid_argument("reorder: " + std::to_string(parents.size()) + " parents and " +
                                std::to_string(last_tokens.size()) + " last_tokens for " +
                                std::to_string(count) + " ids");
  }
  std::vector<int32_t> slots;
  slots.reserve(count);
  int32_t length = -1;
  for (size_t i = 0; i < count; ++i) {
    // Messages are made where they are needed: this is a part of every step.
    const auto require = [&](bool condition, const char* problem) {
      if (!condition) {
        throw std::invalid_argument("reorder: sequence " + std::to_string(ids[i]) + problem);
      }
    };
    const int32_t slot = sequences_.Find(ids[i]);
    const bool is_new = std::find(slots.begin(), slots.end(), slot) == slots.end();
    require(slot >= 0 && is_new, " does not exist, or occurs twice");
    slots.push_back(slot);
    const Sequence& sequence = sequences_[slot];
    const bool started = sequence.leader < 0 && sequence.followers.empty();
    require(sequence.options->beam_search && started, " is not a beam that has begun");
    if (length < 0) length = sequence.known_tokens();
    require(sequence.known_tokens() == length, " has another length than the others");
    require(length + 1 < sequence.max_length, " is as long as it may be");
    require(parents[i] >= 0 && parents[i] < static_cast<int32_t>(count),
            " has a parent that is not one of the ids");
    require(last_tokens[i] >= 0, " has a last token that is negative");
  }
  return slots;
}

void Scheduler::Reorder(const std::vector<int64_t>& ids, const std::vector<int32_t>& parents,
                        const std::vector<int32_t>& last_tokens) {
  const std::vector<int32_t> slots = CheckReorder(ids, parents, last_tokens);
  if (IsInStep(slots)) return ReorderInStep(slots, parents, last_tokens);
  std::vector<Continuation> continuations;
  continuations.reserve(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    const bool stays = parents[i] == static_cast<int32_t>(i);
    continuations.push_back(Continue(&sequences_[slots[parents[i]]], last_tokens[i], stays));
  }
  for (size_t i = 0; i < slots.size(); ++i) Replace(slots[i], &continuations[i]);
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

// Beams whose tokens are pending are in a step together or not at all: the device needs the blocks
// of all of them for a choice that the host does not know yet.
void Scheduler::KeepBeamsTogether() {
  if (pending_beams_.empty()) return;
  std::unordered_map<const RequestOptions*, int32_t> planned;
  for (const int32_t slot : pending_beams_) {
    const Sequence& sequence = sequences_[slot];
    planned[sequence.options.get()] += sequence.step_tokens;
  }
  for (const int32_t slot : pending_beams_) {
    Sequence& sequence = sequences_[slot];
    if (planned[sequence.options.get()] == sequence.options->num_sequences) continue;
    sequence.step_tokens = 0;
    sequence.waits_for_commit = true;
  }
  pending_beams_.clear();
}

bool Scheduler::IsInStep(const std::vector<int32_t>& slots) const {
  return std::all_of(slots.begin(), slots.end(), [this](int32_t slot) {
    return sequences_[slot].awaits_reorder && sequences_[slot].step_tokens > 0;
  });
}

void Scheduler::ReorderInStep(const std::vector<int32_t>& slots,
                              const std::vector<int32_t>& parents,
                              const std::vector<int32_t>& last_tokens) {
  std::vector<SequenceCache*> caches;
  std::vector<std::vector<int32_t>> tokens(slots.size());  // of those that get another history
  caches.reserve(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    caches.push_back(&sequences_[slots[i]].cache);
    if (parents[i] == static_cast<int32_t>(i)) continue;
    const std::vector<int32_t>& history = sequences_[slots[parents[i]]].tokens;
    tokens[i].reserve(history.capacity());  // it grows in the next step
    tokens[i].assign(history.begin(), history.end());
  }
  cache_.Reorder(caches, parents, sequences_[slots[0]].computed);
  for (size_t i = 0; i < slots.size(); ++i) {
    Sequence& sequence = sequences_[slots[i]];
    sequence.awaits_reorder = false;
    if (!tokens[i].empty()) sequence.tokens.swap(tokens[i]);
    sequence.tokens.back() = last_tokens[i];
  }
}

}  // namespace rtp_llm

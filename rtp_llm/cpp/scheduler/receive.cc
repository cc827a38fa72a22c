// SPDX-License-Identifier: Apache-2.0
// The part of Scheduler for prompts that one worker computes and another one goes on with.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "rtp_llm/cpp/scheduler/scheduler.h"

namespace rtp_llm {

std::vector<Receiver> Scheduler::TakeReceivers() {
  std::vector<Receiver> receivers;
  for (const int32_t slot : planner_.TakeReceiving()) {
    const Sequence& sequence = sequences_[slot];
    if (sequence.state != SequenceState::kReceiving) continue;  // ended meanwhile
    receivers.push_back({sequence.id, slot, sequence.computed});
  }
  return receivers;
}

Sequence& Scheduler::ReceivingSequence(int64_t id) {
  const int32_t slot = sequences_.Find(id);
  if (slot < 0 || sequences_[slot].state != SequenceState::kReceiving) {
    throw std::invalid_argument("sequence " + std::to_string(id) + " does not receive its prompt");
  }
  return sequences_[slot];
}

FinishReason Scheduler::FinishRecv(int64_t id, int32_t token, int32_t cached_tokens) {
  Sequence& sequence = ReceivingSequence(id);
  if (token < 0) throw std::invalid_argument("token " + std::to_string(token) + " is negative");
  const int32_t slot = sequences_.Find(id);
  sequences_.Move(slot, SequenceState::kRunning);
  sequence.remote = false;  // if it is preempted, it is computed here
  sequence.charged = true;
  sequence.decoding = true;
  sequence.computed = sequence.length;
  sequence.cached_tokens = cached_tokens;
  cache_.Publish(sequence.tokens.data(), sequence.computed, cache_.state_block_size(),
                 &sequence.cache);
  sequence.Append(token);
  sequences_.waiting.ChargeOutput(sequence.tenant, 1);
  const FinishReason finish = sequence.CheckFinish();
  if (finish != FinishReason::kNone) Retire(slot);
  return finish;
}

void Scheduler::PrefillLocally(int64_t id) {
  Sequence& sequence = ReceivingSequence(id);
  const int32_t slot = sequences_.Find(id);
  cache_.Release(&sequence.cache);
  sequence.computed = 0;
  sequence.remote = false;
  sequences_.Move(slot, SequenceState::kWaiting);
}

std::vector<int32_t> Scheduler::TableEntries(const Sequence& sequence, int32_t group, int32_t first,
                                             int32_t end) const {
  const std::vector<int32_t>& blocks = sequence.cache.tables[group].blocks;
  if (first < 0 || end < first || end > static_cast<int32_t>(blocks.size())) {
    throw std::invalid_argument("sequence " + std::to_string(sequence.id) + " has " +
                                std::to_string(blocks.size()) + " blocks, not [" +
                                std::to_string(first) + ", " + std::to_string(end) + ")");
  }
  std::vector<int32_t> entries(blocks.begin() + first, blocks.begin() + end);
  // Those that fall out of a window before the prompt ends are of no use to others.
  const int32_t live = cache_.group(group).FirstLiveBlock(sequence.prompt_length);
  std::fill_n(entries.begin(), std::clamp(live - first, 0, end - first), kNullBlock);
  return entries;
}

// The state after the prompt belongs to the prompt's last entry.
std::vector<int32_t> Scheduler::StateEntries(const Sequence& sequence, int32_t group, int32_t first,
                                             int32_t end) const {
  if (first < 0 || end < first) throw std::invalid_argument("entries end before they begin");
  const int32_t last = (sequence.prompt_length - 1) / cache_.block_size();
  if (last < first || last >= end) return {};
  const int32_t computed = sequence.state == SequenceState::kReceiving
                               ? sequence.prompt_length
                               : sequence.computed + sequence.step_tokens;
  if (computed != sequence.prompt_length) {
    throw std::invalid_argument("sequence " + std::to_string(sequence.id) +
                                " has the state after " + std::to_string(computed) +
                                " tokens, not after the prompt's " +
                                std::to_string(sequence.prompt_length));
  }
  return {sequence.cache.tables[group].blocks.back()};
}

std::vector<std::vector<int32_t>> Scheduler::Pin(int64_t id, int32_t first, int32_t end) {
  const int32_t slot = sequences_.Find(id);
  if (slot < 0) throw std::invalid_argument("sequence " + std::to_string(id) + " is not there");
  const Sequence& sequence = sequences_[slot];
  std::vector<std::vector<int32_t>> added(cache_.num_groups());
  for (int32_t group = 0; group < cache_.num_groups(); ++group) {
    const bool recurrent = cache_.group(group).IsRecurrent();
    added[group] = recurrent ? StateEntries(sequence, group, first, end)
                             : TableEntries(sequence, group, first, end);
  }
  std::vector<std::vector<int32_t>>& held = held_[id];
  held.resize(cache_.num_groups());
  for (int32_t group = 0; group < cache_.num_groups(); ++group) {
    const std::vector<int32_t>& blocks = added[group];
    cache_.pool(group).Acquire(Holder::kPin, blocks.data(), static_cast<int32_t>(blocks.size()));
    held[group].insert(held[group].end(), blocks.begin(), blocks.end());
  }
  return added;
}

bool Scheduler::Unpin(int64_t id) {
  const auto found = held_.find(id);
  if (found == held_.end()) return false;
  for (int32_t group = 0; group < cache_.num_groups(); ++group) {
    const std::vector<int32_t>& blocks = found->second[group];
    cache_.pool(group).Release(Holder::kPin, blocks.data(), static_cast<int32_t>(blocks.size()));
  }
  held_.erase(found);
  return true;
}

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
// The part of Scheduler for blocks that a KV connector loads, reads or keeps.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "rtp_llm/cpp/scheduler/scheduler.h"

namespace rtp_llm {

void Scheduler::SetConnector(MatchedTokens matched) {
  planner_.SetConnector(std::move(matched));
  cache_.RecordEvictions(&evicted_);
}

EvictedBlocks Scheduler::TakeEvicted() { return std::exchange(evicted_, {}); }

std::vector<Hash128> Scheduler::BlockKeys(int64_t id) const {
  const int32_t slot = sequences_.Find(id);
  if (slot < 0) throw std::invalid_argument("sequence " + std::to_string(id) + " is not there");
  const Sequence& sequence = sequences_[slot];
  const auto known = static_cast<int32_t>(sequence.tokens.size());
  const int32_t blocks = std::max(0, known - 1) / cache_.block_size();
  return cache_.Keys(sequence.cache, sequence.tokens.data(), blocks);
}

std::vector<Receiver> Scheduler::TakeReceivers() {
  std::vector<Receiver> receivers;
  for (const int32_t slot : planner_.TakeReceiving()) {
    const Sequence& sequence = sequences_[slot];
    if (sequence.state != SequenceState::kReceiving) continue;  // ended meanwhile
    receivers.push_back({sequence.id, slot, sequence.computed, sequence.load_end});
  }
  return receivers;
}

Sequence& Scheduler::ReceivingSequence(int64_t id) {
  const int32_t slot = sequences_.Find(id);
  if (slot < 0 || sequences_[slot].state != SequenceState::kReceiving) {
    throw std::invalid_argument("sequence " + std::to_string(id) + " waits for no load");
  }
  return sequences_[slot];
}

FinishReason Scheduler::FinishRecv(int64_t id, int32_t token, int32_t cached_tokens) {
  Sequence& sequence = ReceivingSequence(id);
  if (token < 0) throw std::invalid_argument("token " + std::to_string(token) + " is negative");
  if (sequence.options->prompt_only) {
    throw std::invalid_argument("sequence " + std::to_string(id) + " takes no token");
  }
  if (sequence.load_end < sequence.length) {
    throw std::invalid_argument("sequence " + std::to_string(id) + " received " +
                                std::to_string(sequence.load_end) + " of " +
                                std::to_string(sequence.length) + " tokens");
  }
  const int32_t slot = sequences_.Find(id);
  sequences_.Move(slot, SequenceState::kRunning);
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

void Scheduler::FinishLoad(int64_t id, int32_t arrived) {
  Sequence& sequence = ReceivingSequence(id);
  const int32_t most = std::min(sequence.load_end, sequence.length - 1);
  const int32_t fewest = cache_.whole_chains() ? sequence.computed : sequence.load_end;
  if (arrived < fewest || arrived > most) {
    throw std::invalid_argument("arrived=" + std::to_string(arrived) + " of sequence " +
                                std::to_string(id) + " must be " + std::to_string(fewest) + " to " +
                                std::to_string(most));
  }
  const int32_t slot = sequences_.Find(id);
  sequences_.Move(slot, SequenceState::kRunning);
  sequence.computed = arrived;
  if (sequence.output_length() == 0) sequence.cached_tokens = arrived;
  if (!std::exchange(sequence.charged, true)) {
    sequences_.waiting.ChargePrompt(sequence.tenant, sequence.length - arrived);
  }
  if (arrived < sequence.load_end) cache_.Shrink(arrived, &sequence.cache);
  cache_.Publish(sequence.tokens.data(), arrived, cache_.state_block_size(), &sequence.cache);
}

void Scheduler::Recompute(int64_t id) {
  Sequence& sequence = ReceivingSequence(id);
  const int32_t slot = sequences_.Find(id);
  cache_.Release(&sequence.cache);
  sequence.computed = 0;
  sequence.recompute = true;
  sequences_.Move(slot, SequenceState::kWaiting);
}

// What others load or read of a sequence ends there: what is loaded now, or its prompt.
int32_t Scheduler::TransferEnd(const Sequence& sequence) {
  return sequence.state == SequenceState::kReceiving ? sequence.load_end : sequence.prompt_length;
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
  // Those that fall out of a window before that are of no use to others.
  const int32_t live = cache_.group(group).FirstLiveBlock(TransferEnd(sequence));
  std::fill_n(entries.begin(), std::clamp(live - first, 0, end - first), kNullBlock);
  return entries;
}

// The state belongs to the last entry.
std::vector<int32_t> Scheduler::StateEntries(const Sequence& sequence, int32_t group, int32_t first,
                                             int32_t end) const {
  if (first < 0 || end < first) throw std::invalid_argument("entries end before they begin");
  const int32_t tokens = TransferEnd(sequence);
  const int32_t last = (tokens - 1) / cache_.block_size();
  if (last < first || last >= end) return {};
  const bool receives = sequence.state == SequenceState::kReceiving;
  const int32_t computed = receives ? tokens : sequence.computed + sequence.step_tokens;
  if (computed != tokens) {
    throw std::invalid_argument("sequence " + std::to_string(sequence.id) +
                                " has the state after " + std::to_string(computed) +
                                " tokens, not after the prompt's " + std::to_string(tokens));
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

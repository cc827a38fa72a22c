// SPDX-License-Identifier: Apache-2.0
// The part of Scheduler that checks itself.

#include <algorithm>
#include <string>
#include <unordered_map>

#include "rtp_llm/cpp/cache/errors.h"
#include "rtp_llm/cpp/scheduler/scheduler.h"

namespace rtp_llm {
namespace {

void Expect(bool condition, int64_t id, const char* problem) {
  if (!condition) throw IntegrityError("sequence " + std::to_string(id) + " " + problem);
}

bool SamePrefix(const Sequence& a, const Sequence& b, int32_t end) {
  const auto known = [](const Sequence& sequence) {
    return std::min(sequence.computed, static_cast<int32_t>(sequence.tokens.size()));
  };
  const int32_t count = std::min({known(a), known(b), end});
  return a.options->extra_key == b.options->extra_key &&
         a.options->prompt_inputs.KeyOf(0, count) == b.options->prompt_inputs.KeyOf(0, count) &&
         std::equal(a.tokens.begin(), a.tokens.begin() + count, b.tokens.begin());
}

}  // namespace

void Scheduler::CheckSequence(int32_t slot) const {
  const Sequence& sequence = sequences_[slot];
  const int64_t id = sequence.id;
  Expect(sequences_.Find(id) == slot, id, "is not found by its id");
  const bool holds_blocks =
      std::any_of(sequence.cache.tables.begin(), sequence.cache.tables.end(),
                  [](const BlockTable& table) { return !table.blocks.empty(); });
  const bool owns_blocks =
      sequence.state == SequenceState::kRunning || sequence.state == SequenceState::kReceiving;
  if (!owns_blocks) {
    Expect(!holds_blocks && sequence.computed == 0, id, "holds blocks and does not run");
  }
  if (sequence.state == SequenceState::kFollowing) {
    const auto& others = sequences_[sequence.leader].followers;
    Expect(std::count(others.begin(), others.end(), slot) == 1, id, "follows nobody");
    return;
  }
  const bool pending = sequence.is_pending();
  const int32_t known = sequence.length - (pending ? 1 + sequence.drafts_in_flight : 0);
  Expect(static_cast<int32_t>(sequence.tokens.size()) == known, id, "lost tokens");
  Expect(!in_flight_.empty() || !pending, id, "waits for a token that nobody samples");
  Expect(sequence.computed <= known + sequence.drafts_in_flight, id,
         "has computed a token that is not known");
  Expect(pending || sequence.drafts_in_flight == 0, id,
         "has drafts in flight that nobody verifies");
  const bool ending = sequence.options->prompt_only && sequence.waits_for_commit;
  Expect(!ending || !in_flight_.empty(), id, "waits for a prompt that nobody computes");
  Expect((sequence.remaining() > 0 || ending) && known < sequence.max_length, id,
         "should have ended");
  const int32_t most = sequence.length < sequence.max_length ? sequence.remaining() : 0;
  Expect(sequence.step_tokens <= most + sequence.num_drafts, id, "computes tokens that it has not");
  Expect(sequence.length + sequence.num_drafts <= sequence.max_length, id,
         "has drafts that it can never accept");
  CheckBlocks(sequence);
}

void Scheduler::CheckBlocks(const Sequence& sequence) const {
  for (int32_t group = 0; group < cache_.num_groups(); ++group) {
    const auto size = static_cast<int32_t>(sequence.cache.tables[group].blocks.size());
    const int32_t end = sequence.computed + sequence.step_tokens;
    const bool recurrent = cache_.group(group).IsRecurrent();
    const int32_t held = recurrent ? (size > 0 ? end : 0) : size * cache_.block_size();
    Expect(held >= end, sequence.id, "has tokens without a block");
    if (recurrent) CheckState(sequence, group);
  }
}

// A state that is being written is not shared.
void Scheduler::CheckState(const Sequence& sequence, int32_t group) const {
  const std::vector<int32_t>& blocks = sequence.cache.tables[group].blocks;
  if (sequence.step_tokens == 0 || blocks.empty()) return;
  const BlockPool& pool = cache_.pool(group);
  Expect(pool.references(Holder::kRequest, blocks.back()) == 1 &&
             pool.references(Holder::kCache, blocks.back()) == 0,
         sequence.id, "writes to a state that others read");
}

// Sequences that continue from a state in the same block have the same state, or states from one
// step with drafts.
void Scheduler::CheckSharedStates(int32_t group, const std::vector<int32_t>& live) const {
  std::unordered_map<int32_t, int32_t> user_of_block;
  for (const int32_t slot : live) {
    const Sequence& sequence = sequences_[slot];
    const std::vector<int32_t>& blocks = sequence.cache.tables[group].blocks;
    if (sequence.computed == 0 || sequence.state != SequenceState::kRunning) continue;
    const int32_t block = sequence.step_tokens > 0 ? blocks.front() : blocks.back();
    const auto [user, first] = user_of_block.try_emplace(block, slot);
    if (first) continue;
    const Sequence& other = sequences_[user->second];
    const auto [shorter, longer] = std::minmax(other.computed, sequence.computed);
    Expect(longer - shorter <= config_.max_draft_tokens && SamePrefix(sequence, other, shorter),
           sequence.id, "shares a state with another prompt");
  }
}

void Scheduler::CheckSharing(const std::vector<int32_t>& live) const {
  for (int32_t group = 0; group < cache_.num_groups(); ++group) {
    if (cache_.group(group).IsRecurrent()) {
      CheckSharedStates(group, live);
      continue;
    }
    std::unordered_map<int32_t, std::pair<int32_t, size_t>> user_of_block;
    for (const int32_t slot : live) {
      const std::vector<int32_t>& blocks = sequences_[slot].cache.tables[group].blocks;
      for (size_t i = 0; i < blocks.size(); ++i) {
        if (blocks[i] == kNullBlock) continue;
        const auto [user, first] = user_of_block.try_emplace(blocks[i], slot, i);
        if (first) continue;
        const int32_t end = static_cast<int32_t>(i + 1) * cache_.block_size();
        const bool same = user->second.second == i &&
                          SamePrefix(sequences_[slot], sequences_[user->second.first], end);
        Expect(same, sequences_[slot].id, "shares a block with another prompt");
      }
    }
  }
}

void Scheduler::CheckIntegrity() const {
  std::vector<int32_t> live;
  std::vector<const SequenceCache*> caches;
  for (int32_t slot = 0; slot < sequences_.capacity(); ++slot) {
    if (sequences_[slot].state == SequenceState::kFree) continue;
    live.push_back(slot);
    caches.push_back(&sequences_[slot].cache);
  }
  const size_t slots = sequences_.num_free() + live.size();
  if (live.size() != sequences_.num_live() || slots != static_cast<size_t>(sequences_.capacity())) {
    throw IntegrityError("a sequence slot is lost");
  }
  int32_t places = 0;
  std::vector<const RankedSlots*> lists = {&sequences_.running, &sequences_.receiving};
  for (const int32_t tenant : sequences_.waiting.waiting_tenants()) {
    lists.push_back(&sequences_.waiting.SlotsOf(tenant));
  }
  for (const RankedSlots* list : lists) {
    for (const auto& entry : *list) places += sequences_[entry.slot].places();
  }
  if (places != static_cast<int32_t>(live.size()) ||
      places != sequences_.running_places + sequences_.waiting_places) {
    throw IntegrityError("a sequence is in no list, or in two");
  }
  std::vector<int32_t> tenants;
  for (const int32_t slot : live) tenants.push_back(sequences_[slot].tenant);
  sequences_.waiting.CheckIntegrity(tenants);
  for (const int32_t slot : live) CheckSequence(slot);
  cache_.CheckIntegrity(caches);
  CheckSharing(live);
}

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/scheduler/planner.h"

#include <algorithm>

namespace rtp_llm {
namespace {

// At most this share of the blocks is kept for running sequences when a new one is admitted.
constexpr int32_t kReserveDivisor = 20;

}  // namespace

Planner::Planner(const SchedulerConfig& config, CacheManager* cache, SequenceSet* sequences)
    : config_(config), cache_(*cache), sequences_(*sequences) {}

int32_t Planner::BlocksAlone(int32_t group, int32_t max_length) const {
  // The last token is returned and never computed. Chunks shrink as far as they must.
  return cache_.BlocksNeeded(group, max_length - 1, cache_.state_block_size());
}

void Planner::Plan(const DraftTokens& drafts) {
  int64_t preemptions = 0;
  do {
    preemptions = counters_.preemptions;
    short_of_blocks_ = false;
    PlanRunning();
    if (!sequences_.waiting.empty()) Admit();
    // All that was planned may have been preempted for a request that then did not fit: with its
    // blocks another one can go on.
  } while (counters_.preemptions > preemptions && IsEmpty());
  if (drafts.count > 0) PlanDrafts(drafts);
}

bool Planner::IsEmpty() const {
  return std::none_of(sequences_.running.begin(), sequences_.running.end(),
                      [this](const auto& entry) { return sequences_[entry.slot].step_tokens > 0; });
}

void Planner::PlanRunning() {
  int64_t decode_tokens = 0;
  int32_t num_decoding = 0;
  for (const auto& entry : sequences_.running) {
    const Sequence& sequence = sequences_[entry.slot];
    if (!sequence.decoding) continue;
    decode_tokens += sequence.computable();
    ++num_decoding;
  }
  if (config_.stages > 1) {
    decode_tokens =
        std::min<int64_t>(decode_tokens, (num_decoding + config_.stages - 1) / config_.stages);
  }
  decode_budget_ = static_cast<int32_t>(std::min<int64_t>(decode_tokens, config_.max_batch_tokens));
  prefill_budget_ = config_.max_batch_tokens - decode_budget_;
  // Preemption takes a later sequence, so that what was planned stays planned.
  for (size_t i = 0; i < sequences_.running.size(); ++i) {
    const int32_t slot = sequences_.running[i];
    Sequence& sequence = sequences_[slot];
    int32_t& budget = sequence.decoding ? decode_budget_ : prefill_budget_;
    int32_t count = std::min(sequence.computable(), budget);
    if (count == 0) continue;
    if (!sequence.decoding && (count = CutChunk(sequence, count)) == 0) {
      prefill_budget_ = 0;
      continue;
    }
    count = ReserveOrPreempt(slot, count);
    if (count == 0) continue;
    sequence.step_tokens = count;
    budget -= count;
  }
}

int32_t Planner::ReserveOrPreempt(int32_t slot, int32_t count) {
  Sequence& sequence = sequences_[slot];
  while (true) {
    const int32_t reserved = ReserveFitting(count, &sequence);
    if (reserved > 0) return reserved;
    short_of_blocks_ = true;
    // No sequence loses blocks to a length that is only assumed: this one sits the step out.
    if (sequence.drafts_in_flight > 0) return 0;
    // The last in rank keeps what it has and sits this step out: those before it may finish.
    if (sequences_.running.last() == slot) return 0;
    Preempt(Victim(slot));
  }
}

// Among sequences ranked after `slot`, the last one of the tenant that was given most; any that are
// more urgent than the last one of all are spared.
int32_t Planner::Victim(int32_t slot) const {
  const RankedSlots& running = sequences_.running;
  int32_t victim = running.last();
  const auto given = [this](int32_t candidate) {
    return sequences_.waiting.CounterOf(sequences_[candidate].tenant);
  };
  const int32_t priority = sequences_[victim].options->priority;
  for (size_t i = running.size() - 1; i-- > 0 && running[i] != slot;) {
    if (sequences_[running[i]].options->priority != priority) continue;
    if (given(running[i]) > given(victim)) victim = running[i];
  }
  return victim;
}

int32_t Planner::ReserveFitting(int32_t count, Sequence* sequence) {
  // It continues from `first` if all drafts in flight are wrong.
  const int32_t unsure = sequence->drafts_in_flight;
  const int32_t first = sequence->computed - unsure;
  if (cache_.Reserve(first, count + unsure, &sequence->cache, &copies_)) return count;
  int32_t fitting = cache_.FittingTokens(first, count + unsure, &sequence->cache) - unsure;
  if (fitting >= count) return 0;
  fitting = CutChunk(*sequence, fitting);
  if (fitting <= 0) return 0;
  const bool fits = cache_.Reserve(first, fitting + unsure, &sequence->cache, &copies_);
  return fits ? fitting : 0;
}

// How many of the next `count` tokens of a sequence make a chunk; 0: it must wait for more.
int32_t Planner::CutChunk(const Sequence& sequence, int32_t count) const {
  const int32_t block = cache_.state_block_size();
  if (block == 1 || sequence.decoding) return count;
  const int32_t first = sequence.computed;
  const bool keeps = sequence.cache.path.is_open();
  int32_t end = first + count;
  if (end < sequence.length) {
    end = end / block * block;
  } else if (const int32_t last = (end - 1) / block * block; keeps && last > first) {
    end = last;  // the same prompt again, or one that extends it, starts there
  }
  const int32_t junction = sequence.cache.junction;
  if (keeps && junction > first) end = std::min(end, junction);
  return std::max(0, end - first);
}

void Planner::Admit() {
  while (!sequences_.waiting.empty() && AdmitNext(sequences_.waiting.First())) {
  }
}

bool Planner::AdmitNext(int32_t slot) {
  // Sequences that it preempts wait too, perhaps ahead of it: it still goes first.
  while (true) {
    const int32_t length = sequences_[slot].length;
    const int32_t chunk =
        config_.whole_prompts() ? length : std::min(cache_.state_block_size(), length);
    if (prefill_budget_ < chunk) return false;
    // Preempted in this very plan, while its last token is sampled: it may end with that one.
    if (sequences_[slot].is_pending() || sequences_[slot].waits_for_commit) return false;
    const bool has_place =
        sequences_.running_places + sequences_[slot].places() <= config_.max_running;
    if (has_place && !short_of_blocks_ && TryAdmit(slot)) return true;
    if (!PreemptLessUrgent(slot)) return false;
  }
}

bool Planner::TryAdmit(int32_t slot) {
  Sequence& sequence = sequences_[slot];
  const bool alone = sequences_.running.empty();
  // First a cheap look that counts cached blocks as free of charge, then the real counts.
  const int32_t found = cache_.Lookup(sequence.tokens.data(), sequence.length, &sequence.cache);
  if (!alone && !HasBlocksFor(sequence, found)) return false;
  sequence.computed = cache_.Attach(&sequence.cache);
  const int32_t matched = Matched(sequence);
  if (matched > 0 ? TryReceive(slot, matched) : TryStart(slot, alone)) return true;
  cache_.Release(&sequence.cache);
  sequence.computed = 0;
  return false;
}

bool Planner::TryStart(int32_t slot, bool alone) {
  Sequence& sequence = sequences_[slot];
  if (!alone && !HasBlocksFor(sequence, sequence.computed)) return false;
  const int32_t most = CutChunk(sequence, std::min(sequence.remaining(), prefill_budget_));
  const int32_t count = ReserveFitting(most, &sequence);
  if (count > 0) Start(slot, count);
  return count > 0;
}

int32_t Planner::Matched(const Sequence& sequence) const {
  const bool has_siblings = sequence.options->beam_search || !sequence.followers.empty();
  if (!matched_ || sequence.recompute || has_siblings) return 0;
  return std::clamp(matched_(sequence.id, sequence.computed), 0, sequence.remaining());
}

bool Planner::TryReceive(int32_t slot, int32_t matched) {
  Sequence& sequence = sequences_[slot];
  const int32_t end = sequence.computed + matched;
  if (!cache_.ReserveReceived(end, &sequence.cache)) return false;
  sequence.load_end = end;
  sequences_.Move(slot, SequenceState::kReceiving);
  began_receiving_.push_back(slot);
  CountAdmission(&sequence);
  return true;
}

void Planner::Start(int32_t slot, int32_t count) {
  Sequence& sequence = sequences_[slot];
  sequences_.Move(slot, SequenceState::kRunning);
  sequence.step_tokens = count;
  prefill_budget_ -= count;
  if (!std::exchange(sequence.charged, true)) {
    sequences_.waiting.ChargePrompt(sequence.tenant, sequence.length - sequence.computed);
  }
  CountAdmission(&sequence);
}

void Planner::CountAdmission(Sequence* sequence) {
  if (sequence->admitted) return;  // computed before: its own blocks are not a hit
  sequence->admitted = true;
  sequence->cached_tokens = sequence->computed;
  sequence->queue_seconds =
      std::chrono::duration<float>(std::chrono::steady_clock::now() - sequence->arrival).count();
  if (!sequence->cache.path.is_open()) return;
  counters_.prefix_query_tokens += sequence->length;
  counters_.prefix_hit_tokens += sequence->computed;
}

int32_t Planner::MissingBlocks(int32_t group, const Sequence& sequence, int32_t have) const {
  const CacheGroup& layout = cache_.group(group);
  const auto followers = static_cast<int32_t>(sequence.followers.size());
  const int32_t whole = layout.BlocksForTokens(sequence.length) - have;
  const int32_t live = layout.BlocksForChunk(sequence.length, config_.max_batch_tokens);
  // Each follower will fork the last block, or write a state of its own.
  return std::max(0, layout.IsRecurrent() ? live : std::min(whole, live)) + followers;
}

// Running prompts need nothing on top: one that is not reserved to its end has used up the budget,
// or the blocks, and then none is admitted.
bool Planner::HasBlocksFor(const Sequence& sequence, int32_t cached_tokens) const {
  const int32_t have = cached_tokens / cache_.block_size();
  for (int32_t group = 0; group < cache_.num_groups(); ++group) {
    const int32_t reserve =
        std::min(sequences_.running_places, cache_.pool(group).total_blocks() / kReserveDivisor);
    const int32_t needed = MissingBlocks(group, sequence, have) + reserve;
    if (needed > cache_.AvailableBlocks(group)) return false;
  }
  return true;
}

bool Planner::IsLessUrgent(const Sequence& running, const Sequence& waiting) const {
  return running.options->priority > waiting.options->priority && waiting.rank < running.rank;
}

bool Planner::PreemptLessUrgent(int32_t slot) {
  const Sequence& waiting = sequences_[slot];
  const int32_t have = waiting.cache.path.depth;  // as the last look found it
  int32_t places = config_.max_running - sequences_.running_places;
  std::vector<const SequenceCache*> victims;
  for (const auto& entry : sequences_.running) {
    const Sequence& running = sequences_[entry.slot];
    if (!IsLessUrgent(running, waiting)) continue;
    places += running.places();
    victims.push_back(&running.cache);
  }
  if (victims.empty() || places < waiting.places()) return false;
  for (int32_t group = 0; group < cache_.num_groups(); ++group) {
    const int32_t missing = MissingBlocks(group, waiting, have);
    const int64_t needed = int64_t{missing} - cache_.AvailableBlocks(group);
    if (!cache_.Frees(group, needed, victims)) return false;
  }
  for (size_t i = sequences_.running.size(); i-- > 0;) {
    const int32_t candidate = sequences_.running[i];
    if (!IsLessUrgent(sequences_[candidate], waiting)) continue;
    Preempt(candidate);
    short_of_blocks_ = false;
    return true;
  }
  return false;
}

void Planner::Preempt(int32_t slot) {
  Sequence& sequence = sequences_[slot];
  DropCopies(sequence);
  cache_.Release(&sequence.cache);
  // What was planned for it is free again, for prompts too: it was within the whole budget.
  prefill_budget_ += sequence.step_tokens;
  sequence.step_tokens = 0;
  sequence.length -= std::exchange(sequence.drafts_in_flight, 0);
  sequence.computed = 0;
  sequence.decoding = false;
  if (sequence.awaits_reorder) sequence.DropLast();  // it samples again
  sequences_.Move(slot, SequenceState::kWaiting);
  ++counters_.preemptions;
}

void Planner::DropCopies(const Sequence& sequence) {
  std::vector<BlockCopy> dropped;
  const size_t tail = static_cast<size_t>(sequence.computed / cache_.block_size());
  const auto is_own = [&](const BlockCopy& copy) {
    const std::vector<int32_t>& blocks = sequence.cache.tables[copy.group].blocks;
    return tail < blocks.size() && blocks[tail] == copy.target;
  };
  const auto kept = std::stable_partition(copies_.begin(), copies_.end(),
                                          [&](const BlockCopy& copy) { return !is_own(copy); });
  dropped.assign(kept, copies_.end());
  copies_.erase(kept, copies_.end());
  cache_.ReleaseCopies(&dropped);
}

}  // namespace rtp_llm

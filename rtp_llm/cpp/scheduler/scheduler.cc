// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>

#include "rtp_llm/cpp/cache/errors.h"
#include "rtp_llm/cpp/cache/require.h"

namespace rtp_llm {
namespace {

// Priorities beyond this count as this, so that ageing overtakes any difference in bounded time.
constexpr int32_t kMaxPriority = 100;
constexpr int32_t kTokensReserved = 512;
// Of the queue, this share is kept from a tenant that has more than half of all sequences.
constexpr int32_t kQueueReserveDivisor = 8;

SchedulerConfig Validated(SchedulerConfig config) {
  config.Validate();
  return config;
}

Batch MakeBatch(const SchedulerConfig& config, int32_t block_size, HostArena* arena) {
  const HostArena::Scope scope(arena);
  return Batch(config, block_size);
}

int32_t OutputSnapshotInterval(const SchedulerConfig& config, const CacheManager& cache) {
  const int64_t tokens = int64_t{config.recurrent_snapshot_interval} * cache.state_block_size();
  return static_cast<int32_t>(std::min<int64_t>(tokens, std::numeric_limits<int32_t>::max()));
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config)
    : config_(Validated(std::move(config))),
      cache_(config_.groups, config_.prefix_cache, config_.hash_bits),
      output_snapshot_interval_(OutputSnapshotInterval(config_, cache_)),
      sequences_(config_.max_sequences()),
      planner_(config_, &cache_, &sequences_),
      arena_(config_.shared_batch ? std::make_unique<HostArena>() : nullptr),
      batch_(MakeBatch(config_, cache_.block_size(), arena_.get())),
      result_(config_),
      in_flight_(config_) {}

std::vector<int32_t> Scheduler::Add(const std::vector<int64_t>& ids, const int32_t* prompt,
                                    int32_t length, RequestOptions options) {
  CheckRequest(ids, prompt, length, options);
  const int32_t count = static_cast<int32_t>(ids.size());
  CheckFits(options.beam_search ? count : 1, length, options);
  // Free places among the running ones count too: before the next step everybody waits.
  CheckPlace(count, options.tenant);
  options.num_sequences = count;
  const auto shared = std::make_shared<const RequestOptions>(std::move(options));
  std::vector<int32_t> slots;
  for (const int64_t id : ids) {
    slots.push_back(AddSequence(id, length, shared));
  }
  Sequence& leader = sequences_[slots[0]];
  leader.state = SequenceState::kWaiting;
  leader.tokens.reserve(std::min(leader.max_length, length + kTokensReserved));
  leader.tokens.assign(prompt, prompt + length);
  leader.followers.assign(slots.begin() + 1, slots.end());
  for (const int32_t follower : leader.followers) {
    sequences_[follower].state = SequenceState::kFollowing;
    sequences_[follower].leader = slots[0];
  }
  sequences_.Insert(slots[0]);
  sequences_.waiting_places += count;
  return slots;
}

void Scheduler::CheckPlace(int32_t count, const std::string& tenant) const {
  const auto live = static_cast<int64_t>(sequences_.num_live());
  const auto fail = [&](const std::string& what) {
    throw QueueFullError(
        "the queue is full" + what + ": " + std::to_string(live) +
        " sequences run or wait, max_running=" + std::to_string(config_.max_running) +
        " and max_queued=" + std::to_string(config_.max_queued));
  };
  const int64_t free = config_.max_sequences() - live - count;
  if (free < 0) fail("");
  const int32_t reserve = config_.max_queued / kQueueReserveDivisor;
  if (tenant.empty() || free >= reserve) return;
  const int64_t own = sequences_.waiting.LiveOf(tenant) + count;
  if (2 * own > live + count) {
    fail(" but for " + std::to_string(reserve) + " places for others than '" + tenant + "'");
  }
}

int32_t Scheduler::AddSequence(int64_t id, int32_t length,
                               const std::shared_ptr<const RequestOptions>& options) {
  const int32_t slot = sequences_.Take(id);
  Sequence& sequence = sequences_[slot];
  sequence.arrival = std::chrono::steady_clock::now();
  sequence.rank.priority = std::clamp(options->priority, -kMaxPriority, kMaxPriority);
  sequence.rank.key = step_ + int64_t{sequence.rank.priority} * config_.aging_steps;
  sequence.tenant = sequences_.waiting.Join(options->tenant, options->tenant_weight);
  sequence.length = length;
  sequence.prompt_length = length;
  sequence.max_length = MaxLength(length, *options);
  sequence.overlaps = options->overlap;
  sequence.options = options;
  OpenCache(*options, &sequence.cache);
  return slot;
}

void Scheduler::OpenCache(const RequestOptions& options, SequenceCache* cache) {
  const PromptInputs& inputs = options.prompt_inputs;
  cache_.Open(options.extra_key, options.use_prefix_cache, cache,
              inputs.empty() ? nullptr : &inputs);
}

int32_t Scheduler::MaxLength(int32_t prompt_length, const RequestOptions& options) const {
  if (options.prompt_only) return prompt_length + 1;  // it never gets that long
  const int64_t wanted = int64_t{prompt_length} + options.max_tokens;
  return static_cast<int32_t>(std::min<int64_t>(wanted, config_.max_model_len));
}

void Scheduler::CheckRequest(const std::vector<int64_t>& ids, const int32_t* prompt, int32_t length,
                             const RequestOptions& options) const {
  Require(!ids.empty(), "ids: at least one sequence is needed");
  Require(ids.size() <= static_cast<size_t>(config_.max_running),
          std::to_string(ids.size()) + " sequences of one prompt are more than max_running=" +
              std::to_string(config_.max_running));
  std::unordered_set<int64_t> seen;
  for (const int64_t id : ids) {
    Require(seen.insert(id).second && sequences_.Find(id) < 0,
            "id " + std::to_string(id) + " is in use");
  }
  Require(length >= 1, "prompt: at least one token is needed");
  const std::string problem = options.prompt_only
                                  ? " tokens is too long: max_model_len="
                                  : " tokens leaves no room for output: max_model_len=";
  Require(length < config_.max_model_len + (options.prompt_only ? 1 : 0),
          "prompt of " + std::to_string(length) + problem + std::to_string(config_.max_model_len));
  const int32_t lowest = *std::min_element(prompt, prompt + length);
  Require(lowest >= 0, "prompt: token id " + std::to_string(lowest) + " is negative");
  Require(options.max_tokens >= 1,
          "max_tokens=" + std::to_string(options.max_tokens) + " must be at least 1");
  CheckInputs(length, options);
  Require(!options.prompt_only || ids.size() == 1, "prompt_only is for one sequence");
  Require(!options.beam_search || !options.prompt_only, "beam_search is for sequences that sample");
  Require(!options.beam_search || !options.overlap ||
              (config_.stages == 1 && cache_.state_block_size() == 1),
          "the steps of beams do not overlap in pipelines and with recurrent states");
  Require(options.prompt_only || !config_.whole_prompts(),
          "without cache groups there is no output: prompt_only is not set");
  Require(options.tenant_weight > 0.0 && std::isfinite(options.tenant_weight),
          "tenant_weight=" + std::to_string(options.tenant_weight) + " must be positive");
  Require(options.min_tokens >= 0,
          "min_tokens=" + std::to_string(options.min_tokens) + " must not be negative");
}

void Scheduler::CheckInputs(int32_t length, const RequestOptions& options) const {
  const PromptInputs& inputs = options.prompt_inputs;
  inputs.Check(length);
  Require(config_.mrope || inputs.mrope_offsets.empty(),
          "mrope_offsets: positions have one axis, mrope is not set");
  Require(options.second_text == 0 ||
              (config_.token_types && 0 < options.second_text && options.second_text < length),
          "second_text=" + std::to_string(options.second_text) +
              (config_.token_types ? " must be a place in the prompt"
                                   : ": texts have no types, token_types is not set"));
  Require(options.adapter_slot >= -1 && (config_.adapters || options.adapter_slot < 0),
          "adapter_slot=" + std::to_string(options.adapter_slot) +
              (config_.adapters ? " must be at least -1" : ": adapters is not set"));
}

void Scheduler::CheckFits(int32_t together, int32_t prompt_length,
                          const RequestOptions& options) const {
  const int32_t max_length = MaxLength(prompt_length, options);
  const std::string output =
      options.prompt_only
          ? " tokens needs "
          : " tokens and " + std::to_string(max_length - prompt_length) + " new ones need ";
  for (int32_t group = 0; group < cache_.num_groups(); ++group) {
    const int64_t needed = int64_t{together} * planner_.BlocksAlone(group, max_length);
    const int32_t usable = cache_.pool(group).total_blocks();
    Require(needed <= usable, "prompt of " + std::to_string(prompt_length) + output +
                                  std::to_string(needed) + " cache blocks of " +
                                  std::to_string(cache_.group(group).block_size) +
                                  " tokens in group " + std::to_string(group) + ", there are " +
                                  std::to_string(usable));
  }
}

int32_t Scheduler::Abort(const std::vector<int64_t>& ids, bool not_finite) {
  int32_t ended = 0;
  for (const int64_t id : ids) {
    const int32_t slot = sequences_.Find(id);
    if (slot < 0) continue;
    if (not_finite) cache_.Discard(sequences_[slot].cache);
    Retire(slot);
    ++ended;
  }
  return ended;
}

bool Scheduler::Schedule(const DraftTokens& drafts) {
  if (scheduled_ && in_flight_.full()) {
    throw std::logic_error("schedule() before the last batch was committed");
  }
  if (drafts.count > 0) CheckDrafts(drafts);
  if (scheduled_) LetFly();
  ++step_;
  planner_.Plan(drafts);
  KeepBeamsTogether();
  batch_.Fill(&sequences_, planner_.copies());
  planner_.Finish();
  scheduled_ = batch_.num_seqs > 0;
  return scheduled_;
}

std::vector<int32_t> Scheduler::uncommitted() const {
  std::vector<int32_t> outputs;
  for (size_t i = 0; i < in_flight_.size(); ++i) outputs.push_back(in_flight_[i].count);
  if (scheduled_) outputs.push_back(batch_.num_outputs);
  return outputs;
}

void Scheduler::Retire(int32_t slot) {
  Sequence& sequence = sequences_[slot];
  if (sequence.state == SequenceState::kFollowing) {
    LeaveLeader(slot);
  } else if (!sequence.followers.empty()) {
    HandOver(slot);
  } else {
    sequences_.Erase(slot);
    --sequences_.PlacesOf(sequence.state);
  }
  cache_.Close(&sequence.cache);
  sequences_.waiting.Leave(sequence.tenant);
  sequences_.GiveBack(slot);
}

void Scheduler::LeaveLeader(int32_t slot) {
  Sequence& leader = sequences_[sequences_[slot].leader];
  auto& followers = leader.followers;
  followers.erase(std::find(followers.begin(), followers.end(), slot));
  --sequences_.PlacesOf(leader.state);
}

// The first follower takes the leader's place with all that is computed so far.
void Scheduler::HandOver(int32_t leader_slot) {
  Sequence& leader = sequences_[leader_slot];
  const int32_t heir_slot = leader.followers.front();
  Sequence& heir = sequences_[heir_slot];
  heir.state = leader.state;
  sequences_.Insert(heir_slot);  // first: the tenant does not stop to wait
  sequences_.Erase(leader_slot);
  --sequences_.PlacesOf(leader.state);
  heir.leader = -1;
  heir.charged = leader.charged;
  heir.admitted = leader.admitted;
  heir.computed = leader.computed;
  heir.step_tokens = leader.step_tokens;
  heir.cached_tokens = leader.cached_tokens;
  heir.queue_seconds = leader.queue_seconds;
  heir.tokens = std::move(leader.tokens);
  std::swap(heir.cache, leader.cache);
  for (BlockTable& table : heir.cache.tables) table.changed_from = 0;
  heir.followers.assign(leader.followers.begin() + 1, leader.followers.end());
  for (const int32_t follower : heir.followers) sequences_[follower].leader = heir_slot;
  for (int32_t i = 0; scheduled_ && i < batch_.num_seqs; ++i) {
    if (batch_.seq_serials[i] != leader.rank.serial) continue;
    batch_.seq_ids[i] = heir.id;
    batch_.seq_slots[i] = heir_slot;
    batch_.seq_serials[i] = heir.rank.serial;
  }
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats;
  stats.running = sequences_.running_places;
  stats.waiting = sequences_.waiting_places;
  stats.receiving = static_cast<int64_t>(sequences_.receiving.size());
  stats.held = static_cast<int64_t>(held_.size());
  for (int32_t group = 0; group < cache_.num_groups(); ++group) {
    const BlockPool& pool = cache_.pool(group);
    const GroupStats each{pool.available_blocks(), pool.total_blocks(), pool.cached_blocks()};
    stats.groups.push_back(each);
    stats.free_blocks += each.free_blocks;
    stats.total_blocks += each.total_blocks;
    stats.cached_blocks += each.cached_blocks;
  }
  stats.preemptions = planner_.counters().preemptions;
  stats.prefix_hit_tokens = planner_.counters().prefix_hit_tokens;
  stats.prefix_query_tokens = planner_.counters().prefix_query_tokens;
  return stats;
}

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "rtp_llm/cpp/cache/cache_manager.h"
#include "rtp_llm/cpp/scheduler/config.h"
#include "rtp_llm/cpp/scheduler/sequence_set.h"

namespace rtp_llm {

// Speculative tokens for the next step: those of sequence ids[i] are the first lengths[i] entries
// of row i of `tokens` [count, width]. They follow the last token of the sequence, a pending one
// included. -1 stands for a token that the host does not know: only the device can accept it.
struct DraftTokens {
  int32_t count = 0;
  int32_t width = 0;
  const int64_t* ids = nullptr;
  const int32_t* tokens = nullptr;
  const int32_t* lengths = nullptr;
};

// How many tokens of sequence `id` after the first `computed` ones a KV connector will load, 0 to
// all that the sequence has; see Scheduler::SetConnector.
using MatchedTokens = std::function<int32_t(int64_t id, int32_t computed)>;

struct PlannerCounters {
  int64_t preemptions = 0;
  int64_t prefix_query_tokens = 0;
  int64_t prefix_hit_tokens = 0;
};

// Decides what a step computes. The rules:
//
// - Order is by rank: FIFO within a priority; a more urgent priority is worth aging_steps steps of
//   arrival per level, so a request is only overtaken by those that arrive within that many steps.
// - With several tenants, waiting requests of one priority are ordered by what each tenant was
//   given so far, and by rank only within a tenant: see FairQueue. Running requests are not
//   affected and continue by rank. Each scheduler is fair on its own, also with several ranks.
// - Every decoding sequence gets its token first; what is left of the token budget goes to prompts
//   in order of rank, in chunks.
// - In a pipeline a batch takes an equal share of all decoding sequences and leaves the rest to the
//   other batches: the best-ranked ones that are not in a batch in flight.
// - With recurrent groups a chunk ends on one of their blocks unless it is the prompt's last, so
//   that there is a state to keep; also where prompts are known to diverge, and on the last block
//   before the end. A prompt with its next block beyond the budget waits for a step with fewer
//   decodes, and the prompts after it wait too.
// - The head of the queue is never skipped. It is admitted when its whole prompt fits along with
//   what the running prompts still need and a small reserve for decodes, or when nothing else runs.
// - When blocks run out, the running sequence of the worst rank is preempted. With several tenants
//   it is the worst of the tenant that was given most, among sequences of the least urgent priority
//   ranked after the one that lacks blocks. It loses its blocks (they stay in the prefix cache
//   while they can) and waits at its old rank to be computed again. So the best-ranked sequence
//   always continues, and everything that was accepted fits when it runs alone.
// - A waiting request preempts running ones of a less urgent priority and worse rank, if that
//   helps.
// - The KV connector is queried for the sequence that is admitted next. Tokens that it will load
//   get all their blocks at once, and nothing is computed until they have arrived; until then the
//   sequence is never preempted.
// - Drafts get tokens and blocks that nothing else can use in this step, by rank of their
//   sequences.
class Planner {
 public:
  Planner(const SchedulerConfig& config, CacheManager* cache, SequenceSet* sequences);

  // Sets step_tokens, and drafts, of the running sequences. Block copies that must precede the step
  // are in copies() until Finish().
  void Plan(const DraftTokens& drafts);
  const std::vector<BlockCopy>& copies() const { return copies_; }
  void Finish() { cache_.ReleaseCopies(&copies_); }

  // Asked whenever a single sequence is about to be admitted; perhaps more than once.
  void SetConnector(MatchedTokens matched) { matched_ = std::move(matched); }

  // Slots that began to receive since the last call; some may have ended meanwhile.
  std::vector<int32_t> TakeReceiving() { return std::exchange(began_receiving_, {}); }

  // Blocks that a sequence needs to be computed when alone.
  int32_t BlocksAlone(int32_t group, int32_t max_length) const;

  const PlannerCounters& counters() const { return counters_; }

 private:
  bool IsEmpty() const;
  void PlanRunning();
  int32_t ReserveOrPreempt(int32_t slot, int32_t count);
  int32_t Victim(int32_t slot) const;
  int32_t ReserveFitting(int32_t count, Sequence* sequence);
  int32_t CutChunk(const Sequence& sequence, int32_t count) const;
  void PlanDrafts(const DraftTokens& drafts);
  int32_t ReserveDrafts(int32_t count, Sequence* sequence);
  void Admit();
  bool AdmitNext(int32_t slot);
  bool TryAdmit(int32_t slot);
  bool TryStart(int32_t slot, bool alone);
  int32_t Matched(const Sequence& sequence) const;
  bool TryReceive(int32_t slot, int32_t matched);
  void Start(int32_t slot, int32_t count);
  void CountAdmission(Sequence* sequence);
  bool HasBlocksFor(const Sequence& sequence, int32_t cached_tokens) const;
  int32_t MissingBlocks(int32_t group, const Sequence& sequence, int32_t have) const;
  bool PreemptLessUrgent(int32_t slot);
  bool IsLessUrgent(const Sequence& running, const Sequence& waiting) const;
  void Preempt(int32_t slot);
  void DropCopies(const Sequence& sequence);

  const SchedulerConfig& config_;
  CacheManager& cache_;
  SequenceSet& sequences_;
  MatchedTokens matched_;  // empty: there is no connector
  PlannerCounters counters_;
  std::vector<BlockCopy> copies_;
  int32_t decode_budget_ = 0;
  int32_t prefill_budget_ = 0;
  bool short_of_blocks_ = false;
  std::vector<int32_t> began_receiving_;
};

}  // namespace rtp_llm

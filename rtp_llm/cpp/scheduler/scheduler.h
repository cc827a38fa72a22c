// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "rtp_llm/cpp/cache/cache_manager.h"
#include "rtp_llm/cpp/cache/host_arena.h"
#include "rtp_llm/cpp/scheduler/batch.h"
#include "rtp_llm/cpp/scheduler/config.h"
#include "rtp_llm/cpp/scheduler/planner.h"
#include "rtp_llm/cpp/scheduler/sequence_set.h"

namespace rtp_llm {

// What Commit() takes in place of a token: the row's logits have NaN or +inf, or are all -inf.
constexpr int32_t kNotFiniteRow = -2;
constexpr int32_t kAllBannedRow = -3;

inline FinishReason ErrorOf(int32_t token) {
  if (token == kNotFiniteRow) return FinishReason::kNotFinite;
  return token == kAllBannedRow ? FinishReason::kAllBanned : FinishReason::kNone;
}

// The queue has no place; the same request may be accepted later.
class QueueFullError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A sequence that owns blocks for tokens [computed, end) and waits for what they are to hold.
struct Receiver {
  int64_t id;
  int32_t slot;
  int32_t computed;  // tokens that the prefix cache served
  int32_t end;       // as many as it has: another worker also samples the first output token
};

// The prompt of a sequence and its committed output, which a preempted one keeps. Those of one that
// follows another one's prompt are still to come.
struct KnownTokens {
  int32_t slot;
  int32_t prompt_length;
  std::vector<int32_t> tokens;
};

// Of one cache group.
struct GroupStats {
  int64_t free_blocks = 0;  // evictable cached blocks included
  int64_t total_blocks = 0;
  int64_t cached_blocks = 0;  // held by the prefix cache
};

struct SchedulerStats {
  int64_t running = 0;  // receiving ones included
  int64_t waiting = 0;
  int64_t receiving = 0;
  int64_t held = 0;           // sequences, live or not, whose blocks are kept for a transfer
  int64_t free_blocks = 0;    // of all groups, evictable cached blocks included
  int64_t total_blocks = 0;   // of all groups
  int64_t cached_blocks = 0;  // of all groups, held by the prefix cache
  std::vector<GroupStats> groups;
  int64_t preemptions = 0;
  int64_t prefix_hit_tokens = 0;
  int64_t prefix_query_tokens = 0;
};

// Continuous batching: requests are added and aborted at any time, Schedule() fills the batch of
// the next step, Commit() takes the sampled tokens. Planner has the rules. Not thread safe.
//
// With config.overlap a batch may be scheduled while the last one is in flight, its tokens not yet
// committed. What does not depend on their values happens at that time: the batch in flight counts
// as computed, followers start, and each sequence that samples in it is one token longer, a token
// that is pending until Commit(). Sequences that then are as long as they may be are left out, as
// are those of requests without options.overlap. How long one is that verifies drafts in flight
// depends on values: it is left out too, or, with config.optimistic_drafts, taken to be as long as
// if all were right until Commit() corrects that (drafts.cc says for whom). One that ends otherwise
// has a dead row in the second batch, whose token is dropped. Its blocks, as those of an aborted or
// preempted sequence, are given out again while the device still writes to them: that is safe
// because the device works in the order of the batches. What it writes there is never found by
// others: the prefix cache gets blocks of known tokens only, before they are freed.
//
// With config.stages more batches are in flight, in the stages of a pipeline, each of which works
// in the order of the batches too. No token is named before it is committed then: its sequence is
// in one batch at a time, but for the chunks of a prompt.
class Scheduler {
 public:
  explicit Scheduler(SchedulerConfig config);

  // Adds `ids.size()` sequences that share a prompt; returns the slot of each, 0 <= slot <
  // max_running + max_queued, kept until the sequence ends. Throws std::invalid_argument if the
  // request makes no sense or could never fit, QueueFullError if there is no place now. A named
  // tenant that has more than half of all sequences finds an eighth of the queue closed.
  std::vector<int32_t> Add(const std::vector<int64_t>& ids, const int32_t* prompt, int32_t length,
                           RequestOptions options);

  // Ends sequences in whatever state they are; unknown ids are ignored. Returns how many ended.
  // `not_finite`: they gave NaN or infinity, so their blocks leave the prefix cache.
  int32_t Abort(const std::vector<int64_t>& ids, bool not_finite = false);

  // Adds sequences that go on from what sequence `id` has so far: its prompt and output, the last
  // token replaced by one of `last_tokens` unless these are empty. Stop rules are not applied to
  // it. Returns their slots. Full blocks are shared, the one that is written next is copied before
  // that; where a state is overwritten by the step in flight, no place is free or the sequence
  // waits, they wait to be computed again like preempted ones. May be called at any time between
  // Commit() and the next Schedule(), with a batch in flight too. Throws std::invalid_argument if
  // the sequence has no output or a token that is not committed, QueueFullError if there is no
  // place.
  std::vector<int32_t> Fork(int64_t id, const std::vector<int64_t>& ids,
                            const std::vector<int32_t>& last_tokens = {});

  // The next step of a beam search: sequence ids[i] continues what ids[parents[i]] had before its
  // last commit, with last_tokens[i]. Blocks are shared as by Fork(); a parent that was preempted
  // since then has none, and who continues it waits to be computed again. If the beams overlap and
  // the batch in flight has them, the device has ordered its block tables by the same choice: full
  // blocks follow the parents, and last blocks are given out as LastBlockOwners() says. At the same
  // times as Fork(). Throws std::invalid_argument, with nothing changed, for what are not the beams
  // of a request, all of one length.
  void Reorder(const std::vector<int64_t>& ids, const std::vector<int32_t>& parents,
               const std::vector<int32_t>& last_tokens);

  // What Fork() of sequence `id` starts from. Throws std::invalid_argument for an unknown id.
  KnownTokens TokensOf(int64_t id) const;

  // Fills batch(). False if nothing can run now. A decoding sequence in it also computes its drafts
  // as far as its max_tokens, and tokens and blocks that nobody else needs, allow; drafts of other
  // sequences are ignored. Throws std::logic_error where config.max_uncommitted() batches are not
  // committed; std::invalid_argument, with nothing changed, if the drafts make no sense.
  bool Schedule(const DraftTokens& drafts = {});

  // Tokens sampled in the oldest batch that has none, [outputs, width] padded with -1: of each live
  // sequence at least one, and one more for each draft that equals the token sampled before it. An
  // error ends the sequence in place of a token: kNotFiniteRow or kAllBannedRow. Appends the
  // tokens, applies the stop rules, gives back what ended and what was computed of drafts in vain,
  // fills result(). Blocks that gave NaN leave the prefix cache. Throws std::invalid_argument, with
  // nothing changed, if the tokens do not suit the batch.
  void Commit(const int32_t* tokens, int32_t outputs, int32_t width);

  // Asks `matched` about each sequence that has no siblings when it is about to be admitted, also
  // after a preemption, and records what the prefix cache evicts. The answer counts once
  // TakeReceivers() returns the sequence.
  void SetConnector(MatchedTokens matched);

  // Sequences that got blocks for what the connector loads, each once. Such a sequence waits for
  // FinishLoad(), FinishRecv() or Recompute(), which throw std::invalid_argument if it does not
  // receive.
  std::vector<Receiver> TakeReceivers();
  // The first `arrived` tokens are in its blocks; the rest is computed here. Fewer than were
  // matched only if all cache groups need whole chains.
  void FinishLoad(int64_t id, int32_t arrived);
  // All tokens are in its blocks: it runs from now on, `token` being the next one of its output and
  // `cached_tokens` what the other worker's prefix cache served. Returns whether that token ended
  // it.
  FinishReason FinishRecv(int64_t id, int32_t token, int32_t cached_tokens);
  // Nothing arrived: it is computed here, in its turn, and the connector is not asked again.
  void Recompute(int64_t id);

  // Blocks that were evicted since the last call. To be taken after each Schedule(), and copied
  // before its batch is executed or anything is loaded.
  EvictedBlocks TakeEvicted();
  // Keys, as in EvictedBlocks, of all full blocks of a live sequence before its last token, which
  // is always computed. Empty if it does not use the prefix cache. Throws std::invalid_argument for
  // an unknown id.
  std::vector<Hash128> BlockKeys(int64_t id) const;

  // Keeps entries [first, end) of a live sequence's block tables for a transfer: whatever becomes
  // of the sequence, nobody else gets them before Unpin(). Returns them, per group, kNullBlock for
  // those that what follows the prompt does not read. Of a recurrent group that is the state after
  // the prompt, or after what is loaded: one block if the entries include the last one, else
  // nothing. More of them
  // may follow under the same id. Throws std::invalid_argument if the sequence does not have them.
  std::vector<std::vector<int32_t>> Pin(int64_t id, int32_t first, int32_t end);
  // The transfer has stopped for certain. False if nothing was held under this id.
  bool Unpin(int64_t id);

  // Numbers of outputs of the batches that wait for Commit(), the oldest first.
  std::vector<int32_t> uncommitted() const;

  bool has_work() const { return sequences_.num_live() > 0; }
  const SchedulerConfig& config() const { return config_; }
  Batch& batch() { return batch_; }
  // Where the batch's arrays lie; null unless config.shared_batch.
  const HostArena* arena() const { return arena_.get(); }
  StepResult& result() { return result_; }
  CacheManager& cache() { return cache_; }
  SchedulerStats stats() const;

  // Throws IntegrityError if a block is lost or wrongly shared, or a sequence is out of its state.
  void CheckIntegrity() const;

 private:
  void CheckRequest(const std::vector<int64_t>& ids, const int32_t* prompt, int32_t length,
                    const RequestOptions& options) const;
  void CheckInputs(int32_t length, const RequestOptions& options) const;
  void CheckPlace(int32_t count, const std::string& tenant) const;
  void CheckFits(int32_t together, int32_t prompt_length, const RequestOptions& options) const;
  OutputView OldestOutputs() const { return in_flight_.empty() ? batch_.outputs() : in_flight_[0]; }
  void CheckDrafts(const DraftTokens& drafts) const;
  void CheckTokens(const int32_t* tokens, int32_t outputs, int32_t width) const;
  void CheckOutput(int32_t output, const int32_t* tokens, int32_t width) const;
  int32_t MaxLength(int32_t prompt_length, const RequestOptions& options) const;
  int32_t AddSequence(int64_t id, int32_t length,
                      const std::shared_ptr<const RequestOptions>& options);
  void OpenCache(const RequestOptions& options, SequenceCache* cache);
  void CountComputed();
  void LetFly();
  void AssumeAccepted(int32_t num_drafts, Sequence* sequence);
  bool CanCorrect(const Sequence& sequence) const;
  void CommitOutput(const OutputView& outputs, int32_t output, const int32_t* tokens,
                    int32_t width);
  void CheckFork(int64_t id, const std::vector<int64_t>& ids,
                 const std::vector<int32_t>& last_tokens) const;
  bool SharesCache(const Sequence& parent) const;
  // The slots of `ids`.
  std::vector<int32_t> CheckReorder(const std::vector<int64_t>& ids,
                                    const std::vector<int32_t>& parents,
                                    const std::vector<int32_t>& last_tokens) const;
  struct Continuation;
  Continuation Continue(Sequence* parent, int32_t last_token, bool stays);
  void Replace(int32_t slot, Continuation* by);
  void KeepBeamsTogether();
  bool IsInStep(const std::vector<int32_t>& slots) const;
  void ReorderInStep(const std::vector<int32_t>& slots, const std::vector<int32_t>& parents,
                     const std::vector<int32_t>& last_tokens);
  static void Inherit(const Sequence& parent, Sequence* child);
  void StartFork(Sequence* parent, Sequence* child);
  void CommitPromptEnd(const PromptEnd& end, int32_t row);
  void KeepAccepted(int32_t count, Sequence* sequence);
  void StartFollowers(int32_t leader);
  void Retire(int32_t slot);
  void LeaveLeader(int32_t slot);
  void HandOver(int32_t leader);
  Sequence& ReceivingSequence(int64_t id);
  static int32_t TransferEnd(const Sequence& sequence);
  std::vector<int32_t> TableEntries(const Sequence& sequence, int32_t group, int32_t first,
                                    int32_t end) const;
  std::vector<int32_t> StateEntries(const Sequence& sequence, int32_t group, int32_t first,
                                    int32_t end) const;
  void CheckSequence(int32_t slot) const;
  void CheckBlocks(const Sequence& sequence) const;
  void CheckState(const Sequence& sequence, int32_t group) const;
  void CheckSharedStates(int32_t group, const std::vector<int32_t>& live) const;
  void CheckSharing(const std::vector<int32_t>& live) const;

  const SchedulerConfig config_;
  CacheManager cache_;
  const int32_t output_snapshot_interval_;  // tokens; 0: never
  SequenceSet sequences_;
  Planner planner_;
  EvictedBlocks evicted_;
  const std::unique_ptr<HostArena> arena_;
  Batch batch_;
  StepResult result_;
  int64_t step_ = 0;
  bool scheduled_ = false;              // batch_ is neither in flight nor committed
  OutputsInFlight in_flight_;           // of batches before it that are not committed
  std::vector<int32_t> pending_beams_;  // slots: they sample in the batch that took off last
  std::unordered_map<int64_t, std::vector<std::vector<int32_t>>> held_;  // id -> blocks per group
};

}  // namespace rtp_llm

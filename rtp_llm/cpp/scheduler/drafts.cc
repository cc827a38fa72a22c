// SPDX-License-Identifier: Apache-2.0
// What is done for sequences with drafts only, apart from the code that all sequences run through.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rtp_llm/cpp/cache/require.h"
#include "rtp_llm/cpp/scheduler/batch.h"
#include "rtp_llm/cpp/scheduler/planner.h"
#include "rtp_llm/cpp/scheduler/scheduler.h"

namespace rtp_llm {

void Scheduler::CheckDrafts(const DraftTokens& drafts) const {
  const auto name = [](const char* what, int64_t value) {
    return std::string("drafts: ") + what + " " + std::to_string(value);
  };
  Require(drafts.width <= config_.max_draft_tokens,
          name("a width of", drafts.width) +
              " is more than max_draft_tokens=" + std::to_string(config_.max_draft_tokens));
  std::unordered_set<int64_t> seen;
  for (int32_t row = 0; row < drafts.count; ++row) {
    Require(seen.insert(drafts.ids[row]).second,
            name("id", drafts.ids[row]) + " occurs more than once");
    const int32_t length = drafts.lengths[row];
    Require(length >= 0 && length <= drafts.width,
            name("length", length) + " is not from 0 to " + std::to_string(drafts.width));
    const int32_t* tokens = drafts.tokens + static_cast<size_t>(row) * drafts.width;
    for (int32_t i = 0; i < length; ++i) {
      Require(tokens[i] >= -1, name("token id", tokens[i]) + " is below -1");
    }
  }
}

void Planner::PlanDrafts(const DraftTokens& drafts) {
  int32_t budget = config_.max_batch_tokens;
  for (const auto& entry : sequences_.running) budget -= sequences_[entry.slot].step_tokens;
  std::vector<std::pair<Rank, int32_t>> proposals;  // and the row of `drafts`
  for (int32_t row = 0; row < drafts.count; ++row) {
    const int32_t slot = sequences_.Find(drafts.ids[row]);
    if (slot < 0) continue;
    const Sequence& sequence = sequences_[slot];
    if (sequence.decoding && sequence.step_tokens == 1) proposals.push_back({sequence.rank, row});
  }
  std::sort(proposals.begin(), proposals.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [rank, row] : proposals) {
    Sequence& sequence = sequences_[sequences_.Find(drafts.ids[row])];
    // The last token of a sequence is never a draft: the row after the drafts samples one more.
    const int32_t possible = std::min(budget, sequence.max_length - sequence.length - 1);
    const int32_t count = ReserveDrafts(std::min(drafts.lengths[row], possible), &sequence);
    const int32_t* tokens = drafts.tokens + static_cast<size_t>(row) * drafts.width;
    sequence.drafts.assign(tokens, tokens + count);
    sequence.num_drafts = count;
    sequence.step_tokens += count;
    budget -= count;
  }
}

// How many of them have a block to be written to.
int32_t Planner::ReserveDrafts(int32_t count, Sequence* sequence) {
  // The next step may be planned before these blocks are given back, and each running sequence may
  // need one for its token then.
  const int32_t margin = config_.overlap ? static_cast<int32_t>(sequences_.running.size()) : 0;
  const int32_t first = sequence->computed;
  for (int32_t group = 0; group < cache_.num_groups(); ++group) {
    if (cache_.group(group).IsRecurrent()) continue;  // a state takes in any number of tokens
    const int64_t held = static_cast<int64_t>(sequence->cache.tables[group].blocks.size());
    const int64_t blocks = held + std::max(0, cache_.AvailableBlocks(group) - margin);
    const int64_t fitting = blocks * cache_.block_size() - first - 1;
    count = static_cast<int32_t>(std::min<int64_t>(count, fitting));
  }
  if (count <= 0) return 0;
  return cache_.Extend(first + 1 + count, &sequence->cache) ? count : 0;
}

// The id of the draft after `row`: the draft itself, where the device finds it, or 0 as a stand-in.
int32_t Batch::IdOfDraft(int32_t draft, int32_t row) const {
  if (draft >= 0) return draft;
  return first_draft_name_ == 0 ? 0 : first_draft_name_ - row;
}

void Batch::AddDraftRows(int32_t slot, const Sequence& sequence) {
  for (int32_t i = 0; i < sequence.num_drafts; ++i) {
    const int32_t row = num_rows++;
    const int32_t id = IdOfDraft(sequence.drafts[i], row - 1);
    draft_tokens[row - 1] = sequence.drafts[i];
    logit_rows[row] = logit_rows[row - 1] + 1;
    token_ids[logit_rows[row]] = id;
    row_ids[row] = sequence.id;
    row_slots[row] = slot;
    row_serials[row] = sequence.rank.serial;
    row_steps[row] = row_steps[row - 1] + 1;
    const int32_t end = history_cu[row];
    if (sequence.options->needs_history) history_tokens[end] = id;
    history_cu[row + 1] = end + (sequence.options->needs_history ? 1 : 0);
  }
}

// Each token but the first one, and an error, follows a draft that the token before it equals.
void Scheduler::CheckOutput(int32_t output, const int32_t* tokens, int32_t width) const {
  const auto fail = [&](const char* problem) {
    throw std::invalid_argument("tokens: row " + std::to_string(output) + problem);
  };
  const OutputView batch = OldestOutputs();
  const int32_t num_drafts = batch.num_drafts(output);
  const auto is_something = [](int32_t token) {
    return token >= 0 || ErrorOf(token) != FinishReason::kNone;
  };
  if (!is_something(tokens[0])) fail(" has none");
  for (int32_t i = 1; i < width && tokens[i - 1] >= 0 && is_something(tokens[i]); ++i) {
    if (i > num_drafts) fail(" has more than one token after its drafts");
    const int32_t draft = batch.draft(output, i - 1);
    if (draft >= 0 && draft != tokens[i - 1])
      fail(" continues after a token that is not its draft");
  }
}

// The next step is planned while drafts of this one are in flight. Either all count as right until
// they are committed, or the sequence waits for that.
void Scheduler::AssumeAccepted(int32_t num_drafts, Sequence* sequence) {
  if (!CanCorrect(*sequence)) {
    sequence->waits_for_commit = true;
    return;
  }
  sequence->drafts_in_flight = num_drafts;
  sequence->length += num_drafts;
  sequence->computed += num_drafts;
}

// Whether the device can correct the next step of a sequence by the number of drafts that are
// right. `length` is what it is if none of them is.
bool Scheduler::CanCorrect(const Sequence& sequence) const {
  if (!config_.optimistic_drafts || !sequence.overlaps) return false;
  // A history has one token that only the device knows, not an unknown number of them.
  if (sequence.options->needs_history) return false;
  // The host bans stop ids from the rows before min_tokens.
  if (sequence.output_length() < sequence.options->min_tokens) return false;
  // A state that is kept is not written again: that would have to be known before the next step.
  return output_snapshot_interval_ == 0;
}

// Keeps the accepted drafts of a sequence to which `count` tokens were just appended. What the
// rejected ones wrote is overwritten before it is read.
void Scheduler::KeepAccepted(int32_t count, Sequence* sequence) {
  if (sequence->state != SequenceState::kRunning) return;  // preempted meanwhile
  sequence->computed -= std::exchange(sequence->drafts_in_flight, 0);
  const int32_t before = sequence->computed;
  sequence->computed += std::max(0, count - 1);
  cache_.PublishAccepted(sequence->tokens.data(), sequence->computed, output_snapshot_interval_,
                         before, &sequence->cache);
  // A step that was planned meanwhile uses the blocks that follow.
  if (sequence->step_tokens == 0) cache_.Shrink(sequence->computed, &sequence->cache);
}

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
// The half of Scheduler that takes in what a step computed.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "rtp_llm/cpp/scheduler/scheduler.h"

namespace rtp_llm {

void Scheduler::CheckTokens(const int32_t* tokens, int32_t outputs, int32_t width) const {
  const auto fail = [](const std::string& message) { throw std::invalid_argument(message); };
  const OutputView batch = OldestOutputs();
  if (!scheduled_ && in_flight_.empty() && outputs > 0) fail("commit() without a scheduled batch");
  if (outputs != batch.count) {
    fail("tokens have " + std::to_string(outputs) + " rows, the batch has " +
         std::to_string(batch.count) + " outputs");
  }
  if (outputs == 0) return;
  const int32_t most = 1 + config_.max_draft_tokens;
  if (width < 1 || width > most) {
    fail("tokens have " + std::to_string(width) + " columns, from 1 to " + std::to_string(most) +
         " are possible");
  }
  for (int32_t output = 0; output < outputs; ++output) {
    if (width == 1 && tokens[output] >= 0) continue;
    if (!sequences_.IsLive(batch.slot(output), batch.serial(output))) continue;
    CheckOutput(output, tokens + static_cast<size_t>(output) * width, width);
  }
}

void Scheduler::Commit(const int32_t* tokens, int32_t outputs, int32_t width) {
  CheckTokens(tokens, outputs, width);
  const OutputView batch = OldestOutputs();
  if (in_flight_.empty()) CountComputed();
  const int32_t num_ends = static_cast<int32_t>(batch.prompt_ends->size());
  result_.num_rows = outputs + num_ends;
  result_.width = width;
  for (int32_t output = 0; output < outputs; ++output) {
    CommitOutput(batch, output, tokens + static_cast<size_t>(output) * width, width);
  }
  for (int32_t i = 0; i < num_ends; ++i) CommitPromptEnd((*batch.prompt_ends)[i], outputs + i);
  if (!in_flight_.empty()) {
    in_flight_.DropOldest();
    return;
  }
  batch_.Clear();
  scheduled_ = false;
}

// Puts the batch in flight and makes room for the next one; its rows sample tokens that are
// pending.
void Scheduler::LetFly() {
  CountComputed();
  const OutputView outputs = batch_.outputs();
  for (int32_t output = 0; output < outputs.count; ++output) {
    const int32_t row = outputs.last_row(output);
    const int32_t slot = outputs.row_slots[row];
    if (!sequences_.IsLive(slot, outputs.row_serials[row])) continue;
    Sequence& sequence = sequences_[slot];
    ++sequence.length;
    sequence.pending_row = row;
    sequence.waits_for_commit = !sequence.overlaps || config_.stages > 1;
    const int32_t num_drafts = outputs.num_drafts(output);
    if (num_drafts > 0) AssumeAccepted(num_drafts, &sequence);
    if (sequence.overlaps && sequence.options->beam_search) pending_beams_.push_back(slot);
  }
  for (const PromptEnd& end : *outputs.prompt_ends) {
    if (sequences_.IsLive(end.slot, end.serial)) sequences_[end.slot].waits_for_commit = true;
  }
  in_flight_.Keep(outputs);
  scheduled_ = false;
}

// All tokens that the batch computes are known: the batch before it was committed. Drafts count
// once they are accepted.
void Scheduler::CountComputed() {
  for (int32_t i = 0; i < batch_.num_seqs; ++i) {
    const int32_t slot = batch_.seq_slots[i];
    if (!sequences_.IsLive(slot, batch_.seq_serials[i])) continue;
    Sequence& sequence = sequences_[slot];
    const int32_t num_drafts = std::exchange(sequence.num_drafts, 0);
    sequence.computed += sequence.step_tokens - num_drafts;
    sequence.step_tokens = 0;
    if (num_drafts > 0) continue;  // see KeepAccepted
    // Prompts are cut where a snapshot is worth keeping.
    const int32_t interval =
        sequence.decoding ? output_snapshot_interval_ : cache_.state_block_size();
    cache_.Publish(sequence.tokens.data(), sequence.computed, interval, &sequence.cache);
    if (sequence.remaining() > 0 || sequence.options->prompt_only) continue;
    sequence.decoding = true;
    if (!sequence.followers.empty()) StartFollowers(slot);
  }
}

void Scheduler::StartFollowers(int32_t leader_slot) {
  Sequence& leader = sequences_[leader_slot];
  for (const int32_t slot : leader.followers) {
    Sequence& follower = sequences_[slot];
    follower.state = SequenceState::kRunning;
    follower.leader = -1;
    Inherit(leader, &follower);
    StartFork(&leader, &follower);
    sequences_.running.Insert(follower.rank, slot);
  }
  leader.followers.clear();
}

void Scheduler::CommitOutput(const OutputView& outputs, int32_t output, const int32_t* tokens,
                             int32_t width) {
  int32_t* out = &result_.tokens[static_cast<size_t>(output) * width];
  const int32_t row = outputs.first_row(output);
  result_.ids[output] = outputs.row_ids[row];
  const int32_t slot = outputs.row_slots[row];
  if (!sequences_.IsLive(slot, outputs.row_serials[row])) {
    result_.SetNothing(output);
    return;
  }

  Sequence& sequence = sequences_[slot];
  FinishReason finish = FinishReason::kNone;
  int32_t count = 0;
  while (count < width && tokens[count] >= 0 && finish == FinishReason::kNone) {
    sequence.Append(tokens[count]);
    out[count] = tokens[count];
    ++count;
    finish = sequence.CheckFinish();
  }
  sequences_.waiting.ChargeOutput(sequence.tenant, count);
  if (count < width) {
    std::fill(out + count, out + width, -1);
    if (finish == FinishReason::kNone) finish = ErrorOf(tokens[count]);
  }
  const int32_t num_drafts = outputs.num_drafts(output);
  if (num_drafts > 0) KeepAccepted(count, &sequence);
  if (finish == FinishReason::kNotFinite) {
    cache_.Discard(sequence.cache);
  } else if (count > 0) {
    cache_.Verify(&sequence.cache);
  }
  result_.num_tokens[output] = count;
  result_.num_drafts[output] = num_drafts;
  result_.finish[output] = static_cast<uint8_t>(finish);
  result_.cached_tokens[output] = sequence.cached_tokens;
  result_.queue_seconds[output] = sequence.queue_seconds;
  if (finish == FinishReason::kNone && sequence.options->beam_search) sequence.AwaitReorder();
  if (finish != FinishReason::kNone) Retire(slot);
}

void Scheduler::CommitPromptEnd(const PromptEnd& end, int32_t row) {
  result_.ids[row] = end.id;
  result_.SetNothing(row);
  if (!sequences_.IsLive(end.slot, end.serial)) return;
  Sequence& sequence = sequences_[end.slot];
  cache_.Verify(&sequence.cache);
  result_.finish[row] = static_cast<uint8_t>(FinishReason::kPrompt);
  result_.cached_tokens[row] = sequence.cached_tokens;
  result_.queue_seconds[row] = sequence.queue_seconds;
  Retire(end.slot);
}

}  // namespace rtp_llm

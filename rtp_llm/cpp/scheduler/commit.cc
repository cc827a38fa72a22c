// The half of Scheduler that takes in what a step computed.

#include <algorithm>
#include <stdexcept>
#include <string>

#include "rtp_llm/cpp/scheduler/scheduler.h"

namespace rtp_llm {
namespace {

FinishReason ErrorOf(int32_t token) {
  if (token == kNotFiniteRow) return FinishReason::kNotFinite;
  return token == kAllBannedRow ? FinishReason::kAllBanned : FinishReason::kNone;
}

}  // namespace

void Scheduler::CheckTokens(const int32_t* tokens, int32_t rows, int32_t width) const {
  const auto fail = [](const std::string& message) { throw std::invalid_argument(message); };
  const RowOwners owners = OldestRows();
  if (!scheduled_ && !in_flight_ && rows > 0) fail("commit() without a scheduled batch");
  if (rows != owners.count) {
    fail("tokens have " + std::to_string(rows) + " rows, the batch has " +
         std::to_string(owners.count));
  }
  if (rows == 0) return;
  // The batch after it may be scheduled already, and counts on one token of each row.
  const int32_t most = config_.overlap ? 1 : kMaxCommitWidth;
  if (width < 1 || width > most) {
    fail("tokens have " + std::to_string(width) + " columns, from 1 to " + std::to_string(most) +
         " are possible");
  }
  for (int32_t row = 0; row < rows; ++row) {
    const int32_t first = tokens[static_cast<size_t>(row) * width];
    if (first >= 0 || first == kNotFiniteRow || first == kAllBannedRow) continue;
    if (!sequences_.IsLive(owners.slots[row], owners.serials[row])) continue;
    fail("tokens: row " + std::to_string(row) + " has none");
  }
}

void Scheduler::Commit(const int32_t* tokens, int32_t rows, int32_t width) {
  CheckTokens(tokens, rows, width);
  const RowOwners owners = OldestRows();
  if (!in_flight_) CountComputed();
  result_.num_rows = rows;
  result_.width = width;
  for (int32_t row = 0; row < rows; ++row) {
    CommitRow(owners, row, tokens + static_cast<size_t>(row) * width, width);
  }
  if (in_flight_) {
    in_flight_ = false;
    return;
  }
  batch_.Clear();
  scheduled_ = false;
}

// The batch gives way to the next one; its rows draw tokens that are pending.
void Scheduler::LetFly() {
  CountComputed();
  const RowOwners owners = batch_.owners();
  for (int32_t row = 0; row < owners.count; ++row) {
    if (!sequences_.IsLive(owners.slots[row], owners.serials[row])) continue;
    Sequence& sequence = sequences_[owners.slots[row]];
    ++sequence.length;
    sequence.pending_row = row;
  }
  owners_in_flight_.Keep(owners);
  in_flight_ = true;
  scheduled_ = false;
}

// All tokens that the batch computes are known: the batch before it was committed.
void Scheduler::CountComputed() {
  for (int32_t i = 0; i < batch_.num_seqs; ++i) {
    const int32_t slot = batch_.seq_slots[i];
    if (!sequences_.IsLive(slot, batch_.seq_serials[i])) continue;
    Sequence& sequence = sequences_[slot];
    sequence.computed += sequence.step_tokens;
    sequence.step_tokens = 0;
    // Prompts are cut where a snapshot is worth keeping.
    const int32_t interval =
        sequence.decoding ? output_snapshot_interval_ : cache_.state_block_size();
    cache_.Publish(sequence.tokens.data(), sequence.computed, interval, &sequence.cache);
    if (sequence.remaining() > 0) continue;
    sequence.decoding = true;
    if (!sequence.followers.empty()) StartFollowers(slot);
  }
}

void Scheduler::StartFollowers(int32_t leader_slot) {
  Sequence& leader = sequences_[leader_slot];
  leader.cache.may_share_tail = true;
  for (const int32_t slot : leader.followers) {
    Sequence& follower = sequences_[slot];
    follower.state = SequenceState::kRunning;
    follower.decoding = true;
    follower.admitted = true;
    follower.leader = -1;
    follower.computed = leader.computed;
    follower.cached_tokens = leader.cached_tokens;
    follower.queue_seconds = leader.queue_seconds;
    follower.tokens = leader.tokens;
    cache_.Fork(leader.cache, &follower.cache);
    sequences_.running.Insert(follower.rank, slot);
  }
  leader.followers.clear();
}

void Scheduler::CommitRow(const RowOwners& owners, int32_t row, const int32_t* tokens,
                          int32_t width) {
  int32_t* out = &result_.tokens[static_cast<size_t>(row) * width];
  std::fill_n(out, width, -1);
  result_.ids[row] = owners.ids[row];
  result_.num_tokens[row] = 0;
  result_.finish[row] = static_cast<uint8_t>(FinishReason::kNone);
  result_.cached_tokens[row] = 0;
  result_.queue_seconds[row] = 0.0f;
  const int32_t slot = owners.slots[row];
  if (!sequences_.IsLive(slot, owners.serials[row])) return;

  Sequence& sequence = sequences_[slot];
  FinishReason finish = FinishReason::kNone;
  int32_t count = 0;
  while (count < width && tokens[count] >= 0 && finish == FinishReason::kNone) {
    sequence.Append(tokens[count]);
    out[count] = tokens[count];
    ++count;
    finish = sequence.CheckFinish();
  }
  if (finish == FinishReason::kNone && count < width) finish = ErrorOf(tokens[count]);
  if (finish == FinishReason::kNotFinite) {
    cache_.Discard(sequence.cache);
  } else if (count > 0) {
    cache_.Verify(&sequence.cache);
  }
  result_.num_tokens[row] = count;
  result_.finish[row] = static_cast<uint8_t>(finish);
  result_.cached_tokens[row] = sequence.cached_tokens;
  result_.queue_seconds[row] = sequence.queue_seconds;
  if (finish != FinishReason::kNone) Retire(slot);
}

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/scheduler/batch.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace rtp_llm {
namespace {

// Widths move in steps, so that tables rarely change their shape and rows can be kept.
constexpr int32_t kWidthStep = 16;

int32_t RoundUp(int32_t value, int32_t step) { return (value + step - 1) / step * step; }

size_t MaxTableWidth(const SchedulerConfig& config, const CacheGroup& group) {
  return RoundUp(group.BlocksForTokens(config.max_model_len), kWidthStep);
}

size_t Capacity(const SchedulerConfig& config, Extent extent) {
  switch (extent) {
    case Extent::kTokens:
      return config.max_batch_tokens;
    case Extent::kTokenAxes:
      return kAxes * static_cast<size_t>(config.max_batch_tokens);
    case Extent::kSequences:
      return config.max_running;
    case Extent::kRows:
      return config.max_rows();
    case Extent::kSequenceStarts:
    case Extent::kOutputStarts:
      return config.max_running + 1;
    case Extent::kRowStarts:
      return config.max_rows() + 1;
    case Extent::kHistory:
      return static_cast<size_t>(config.max_running) * config.max_model_len;
    default:
      return 0;  // of groups
  }
}

size_t Capacity(const SchedulerConfig& config, const CacheGroup& group, Extent extent) {
  if (extent == Extent::kGroupCopies) return 2 * size_t{1} * config.max_running;
  if (group.IsRecurrent()) return extent == Extent::kGroupStates ? config.max_running : 0;
  if (extent == Extent::kGroupTokens) return config.max_batch_tokens;
  if (extent == Extent::kGroupTable) return config.max_running * MaxTableWidth(config, group);
  return 0;
}

// Copies tokens [first, first + count); the last one of a sequence may be known by its row only.
// The caller overwrites the places of drafts.
void CopyTokens(const Sequence& sequence, int32_t first, int32_t count, int32_t* out) {
  const int32_t rest = static_cast<int32_t>(sequence.tokens.size()) - first;
  const int32_t known = std::clamp(rest, 0, count);  // none after drafts in flight
  std::memcpy(out, sequence.tokens.data() + first, sizeof(int32_t) * known);
  if (known < count) out[known] = -1 - sequence.pending_row;
}

}  // namespace

Batch::GroupArrays::GroupArrays(const SchedulerConfig& config, const CacheGroup& group)
    :
#define GROUP_ARRAY(type, name, extent) name(Capacity(config, group, Extent::extent)),
#include "rtp_llm/cpp/scheduler/batch_arrays.inc"
      recurrent(group.IsRecurrent()),
      rows(config.max_running) {
}

Batch::Batch(const SchedulerConfig& config, int32_t block_size)
    :
#define STEP_ARRAY(type, name, extent, needed) name(needed ? Capacity(config, Extent::extent) : 0),
#include "rtp_llm/cpp/scheduler/batch_arrays.inc"
      seq_slots(config.max_running),
      seq_serials(config.max_running),
      row_serials(config.max_rows()),
      block_size_(block_size),
      first_draft_name_(config.device_drafts ? -1 - config.max_rows() : 0) {
  std::iota(row_cu.data(), row_cu.data() + row_cu.size(), 0);
  std::fill_n(draft_tokens.data(), draft_tokens.size(), -1);
  groups.reserve(config.groups.size());
  for (const CacheGroup& group : config.groups) groups.emplace_back(config, group);
}

void Batch::Clear() {
  if (num_outputs < num_rows) {  // else they are as at first
    std::iota(row_cu.data(), row_cu.data() + num_outputs + 1, 0);
    std::fill_n(draft_tokens.data(), num_rows, -1);
  }
  num_seqs = num_tokens = num_rows = num_outputs = 0;
  prompt_ends.clear();
  max_seqlen_q = max_seqlen_k = sampling_flags = 0;
  cu_seqlens_q[0] = 0;
  history_cu[0] = 0;
  for (GroupArrays& group : groups) group.num_copies = 0;
}

void Batch::Fill(SequenceSet* sequences, const std::vector<BlockCopy>& copies) {
  Clear();
  verifying_.clear();
  chunks_.clear();
  for (const auto& entry : sequences->running) {
    const Sequence& sequence = (*sequences)[entry.slot];
    if (sequence.step_tokens == 1) {
      AddSequence(entry.slot, sequences);
    } else if (sequence.step_tokens > 1) {
      (sequence.num_drafts == 0 ? chunks_ : verifying_).push_back(entry.slot);
    }
  }
  for (const int32_t slot : verifying_) AddSequence(slot, sequences);
  for (const int32_t slot : chunks_) AddSequence(slot, sequences);
  FillTables(sequences);
  FillCopies(copies);
}

void Batch::AddSequence(int32_t slot, SequenceSet* sequences) {
  const Sequence& sequence = (*sequences)[slot];
  const int32_t end = sequence.computed + sequence.step_tokens;
  AddTokens(sequence);
  seq_ids[num_seqs] = sequence.id;
  seq_slots[num_seqs] = slot;
  seq_serials[num_seqs] = sequence.rank.serial;
  seq_lens[num_seqs] = end;
  if (adapter_slots.size() > 0) adapter_slots[num_seqs] = sequence.options->adapter_slot;
  if (second_texts.size() > 0) second_texts[num_seqs] = sequence.options->second_text;
  const bool is_known = end < static_cast<int32_t>(sequence.tokens.size());
  next_tokens[num_seqs] = is_known ? sequence.tokens[end] : -1;
  previous_tokens[num_seqs] = 0;
  if (sequence.computed > 0) {
    CopyTokens(sequence, sequence.computed - 1, 1, &previous_tokens[num_seqs]);
  }
  max_seqlen_q = std::max(max_seqlen_q, sequence.step_tokens);
  max_seqlen_k = std::max(max_seqlen_k, end);
  num_tokens += sequence.step_tokens;
  cu_seqlens_q[++num_seqs] = num_tokens;
  if (end < sequence.length) return;
  if (!sequence.options->prompt_only) {
    AddOutputs(slot, sequence, *sequences);
    return;
  }
  next_tokens[num_seqs - 1] = 0;
  prompt_ends.push_back({sequence.id, sequence.rank.serial, slot});
}

void Batch::AddTokens(const Sequence& sequence) {
  const int32_t first = sequence.computed;
  const int32_t count = sequence.step_tokens;
  CopyTokens(sequence, first, count, &token_ids[num_tokens]);
  int32_t* position = &positions[num_tokens];
  for (int32_t i = 0; i < count; ++i) position[i] = first + i;
  if (mrope_offsets.size() > 0) AddMropeOffsets(sequence);
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].recurrent) continue;
    const int32_t* blocks = sequence.cache.tables[g].blocks.data();
    int32_t* slots = &groups[g].slot_mapping[num_tokens];
    for (int32_t done = 0; done < count;) {
      const int32_t block = (first + done) / block_size_;
      const int32_t end = std::min(count, (block + 1) * block_size_ - first);
      const int32_t shift = (blocks[block] - block) * block_size_ + first;
      for (; done < end; ++done) slots[done] = shift + done;
    }
  }
}

void Batch::AddMropeOffsets(const Sequence& sequence) {
  int32_t* offset = &mrope_offsets[static_cast<size_t>(num_tokens) * kAxes];
  const int32_t end = sequence.computed + sequence.step_tokens;
  for (int32_t token = sequence.computed; token < end; ++token, offset += kAxes) {
    sequence.options->prompt_inputs.CopyMropeOffsets(token, offset);
  }
}

void Batch::AddOutputs(int32_t slot, const Sequence& sequence, const SequenceSet& sequences) {
  AddOutput(slot, sequence, sequence);
  for (const int32_t follower : sequence.followers) {
    AddOutput(follower, sequences[follower], sequence);
  }
}

void Batch::AddOutput(int32_t slot, const Sequence& owner, const Sequence& source) {
  AddRow(slot, owner, source);
  sampling_flags |= source.options->sampling_flags;
  if (source.num_drafts > 0) AddDraftRows(slot, source);
  if (++num_outputs < num_rows) row_cu[num_outputs] = num_rows;
}

inline void Batch::AddRow(int32_t slot, const Sequence& owner, const Sequence& source) {
  const int32_t row = num_rows++;
  logit_rows[row] = num_tokens - 1 - source.num_drafts;
  row_ids[row] = owner.id;
  row_slots[row] = slot;
  row_serials[row] = owner.rank.serial;
  row_steps[row] = source.output_length();
  int32_t end = history_cu[row];
  if (source.options->needs_history) {
    CopyTokens(source, 0, source.length, &history_tokens[end]);
    end += source.length;
  }
  history_cu[row + 1] = end;
}

void Batch::FillTables(SequenceSet* sequences) {
  const int32_t needed = RoundUp((max_seqlen_k + block_size_ - 1) / block_size_, kWidthStep);
  for (size_t g = 0; g < groups.size(); ++g) {
    GroupArrays& group = groups[g];
    if (group.recurrent) {
      FillStates(*sequences, static_cast<int32_t>(g));
      continue;
    }
    if (needed > group.table_width || 2 * needed < group.table_width) {
      group.table_width = needed;
      for (GroupArrays::Row& row : group.rows) row = {};
    }
    for (int32_t row = 0; row < num_seqs; ++row) {
      FillTableRow(row, &(*sequences)[seq_slots[row]], static_cast<int32_t>(g));
    }
  }
  for (int32_t row = 0; row < num_seqs; ++row) (*sequences)[seq_slots[row]].batch_row = row;
}

void Batch::FillStates(const SequenceSet& sequences, int32_t group) {
  GroupArrays& arrays = groups[group];
  for (int32_t row = 0; row < num_seqs; ++row) {
    const Sequence& sequence = sequences[seq_slots[row]];
    const std::vector<int32_t>& blocks = sequence.cache.tables[group].blocks;
    arrays.state_read[row] = sequence.computed == 0 ? kNullBlock : blocks.front();
    arrays.state_write[row] = blocks.back();
  }
}

void Batch::FillTableRow(int32_t row, Sequence* sequence, int32_t group) {
  GroupArrays& arrays = groups[group];
  GroupArrays::Row& state = arrays.rows[row];
  BlockTable& table = sequence->cache.tables[group];
  const int32_t size = static_cast<int32_t>(table.blocks.size());
  // The row is still right up to the first change if it was this sequence's at the last fill.
  const bool kept = state.serial == sequence->rank.serial && sequence->batch_row == row;
  const int32_t first = kept ? std::min(table.changed_from, size) : 0;
  const int32_t stale_end = kept ? state.filled : arrays.table_width;
  int32_t* target = &arrays.block_table[static_cast<size_t>(row) * arrays.table_width];
  std::copy(table.blocks.data() + first, table.blocks.data() + size, target + first);
  if (stale_end > size) std::fill(target + size, target + stale_end, kNullBlock);
  state = {sequence->rank.serial, size};
  table.changed_from = size;
}

void Batch::FillCopies(const std::vector<BlockCopy>& copies) {
  for (const BlockCopy& copy : copies) {
    GroupArrays& group = groups[copy.group];
    group.copy_pairs[2 * group.num_copies] = copy.source;
    group.copy_pairs[2 * group.num_copies + 1] = copy.target;
    ++group.num_copies;
  }
}

KeptOutputs::KeptOutputs(const SchedulerConfig& config)
    : row_cu_(config.max_running + 1),
      ids_(config.max_rows()),
      slots_(config.max_rows()),
      serials_(config.max_rows()),
      drafts_(config.max_rows()) {}

void KeptOutputs::Keep(const OutputView& outputs) {
  prompt_ends_ = *outputs.prompt_ends;
  count_ = outputs.count;
  const int32_t rows = outputs.row_cu[count_];
  std::copy_n(outputs.row_cu, count_ + 1, row_cu_.data());
  std::copy_n(outputs.row_ids, rows, ids_.data());
  std::copy_n(outputs.row_slots, rows, slots_.data());
  std::copy_n(outputs.row_serials, rows, serials_.data());
  std::copy_n(outputs.draft_tokens, rows, drafts_.data());
}

OutputsInFlight::OutputsInFlight(const SchedulerConfig& config) {
  for (int32_t i = 1; i < config.max_uncommitted(); ++i) kept_.emplace_back(config);
}

void OutputsInFlight::DropOldest() {
  first_ = Place(1);
  --count_;
}

StepResult::StepResult(const SchedulerConfig& config)
    : ids(config.max_running),
      tokens(config.max_rows()),
      num_tokens(config.max_running),
      num_drafts(config.max_running),
      finish(config.max_running),
      cached_tokens(config.max_running),
      queue_seconds(config.max_running) {}

void StepResult::SetNothing(int32_t output) {
  std::fill_n(&tokens[static_cast<size_t>(output) * width], width, -1);
  num_tokens[output] = 0;
  num_drafts[output] = 0;
  finish[output] = static_cast<uint8_t>(FinishReason::kNone);
  cached_tokens[output] = 0;
  queue_seconds[output] = 0.0f;
}

}  // namespace rtp_llm

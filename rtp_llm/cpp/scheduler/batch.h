// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "rtp_llm/cpp/cache/cache_manager.h"
#include "rtp_llm/cpp/cache/host_array.h"
#include "rtp_llm/cpp/scheduler/config.h"
#include "rtp_llm/cpp/scheduler/sequence_set.h"

namespace rtp_llm {

// A sequence that a batch computes to the end of its prompt, and that gets no token.
struct PromptEnd {
  int64_t id;
  int64_t serial;
  int32_t slot;
};

// Which sequences get tokens from a batch, and the rows of logits that they come from; and which
// ones end with their prompt.
struct OutputView {
  const std::vector<PromptEnd>* prompt_ends;
  int32_t count;
  const int32_t* row_cu;
  const int64_t* row_ids;
  const int32_t* row_slots;
  const int64_t* row_serials;
  const int32_t* draft_tokens;

  int64_t id(int32_t output) const { return row_ids[row_cu[output]]; }
  int32_t slot(int32_t output) const { return row_slots[row_cu[output]]; }
  int64_t serial(int32_t output) const { return row_serials[row_cu[output]]; }
  int32_t first_row(int32_t output) const { return row_cu[output]; }
  int32_t last_row(int32_t output) const { return row_cu[output + 1] - 1; }
  int32_t num_drafts(int32_t output) const { return last_row(output) - first_row(output); }
  int32_t draft(int32_t output, int32_t index) const {
    return draft_tokens[first_row(output) + index];
  }
};

// The shapes of a step's arrays, as rtp_llm/worker/plan/extents.py names them.
enum class Extent {
  kTokens,
  kTokenAxes,
  kSequences,
  kRows,
  kSequenceStarts,
  kOutputStarts,
  kRowStarts,
  kHistory,
  kGroupTokens,
  kGroupTable,
  kGroupCopies,
  kGroupStates,
};

// One step's input: B sequences with T tokens in all. First those with a single token, then those
// that verify drafts, then chunks of prompts. O of them (num_outputs) have all their tokens
// computed by this step and get tokens from R rows of logits: one each, and one more for each
// draft. Arrays keep their place for ever, only their live part changes. Numbers and arrays are
// declared in rtp_llm/worker/plan/step_plan.py.
class Batch {
 public:
  struct GroupArrays {
    GroupArrays(const SchedulerConfig& config, const CacheGroup& group);

#define GROUP_ARRAY(type, name, extent) HostArray<type> name;
#include "rtp_llm/cpp/scheduler/batch_arrays.inc"
    bool recurrent = false;
    int32_t table_width = 0;
    int32_t num_copies = 0;

    // What each row of block_table holds, so that only changes are written.
    struct Row {
      int64_t serial = 0;
      int32_t filled = 0;
    };
    std::vector<Row> rows;
  };

  // `block_size`: of the full and sliding-window groups.
  Batch(const SchedulerConfig& config, int32_t block_size);

  // Fills everything from the sequences' step_tokens.
  void Fill(SequenceSet* sequences, const std::vector<BlockCopy>& copies);
  void Clear();
  OutputView outputs() const {
    return {&prompt_ends,     num_outputs,        row_cu.data(),      row_ids.data(),
            row_slots.data(), row_serials.data(), draft_tokens.data()};
  }

  // A token that the batch in flight samples is -(its row there + 1), here and in history_tokens.
  // With optimistic_drafts that row is the last one of its output, after all drafts. If only some
  // of the drafts are accepted, the token comes from the row after those, and the sequence is
  // shorter by the number rejected: so are its positions, seq_lens and row_steps, and slot_mapping
  // follows from the positions and block_table. The device has to correct them; maxima remain
  // bounds. A draft that the host does not know is 0, or with device_drafts -(max_rows + r + 1),
  // where r is the row that it follows.
#define STEP_NUMBER(name) int32_t name = 0;
#define STEP_ARRAY(type, name, extent, needed) HostArray<type> name;
#include "rtp_llm/cpp/scheduler/batch_arrays.inc"
  std::vector<GroupArrays> groups;

  // The scheduler's own.
  HostArray<int32_t> seq_slots;    // [B]
  HostArray<int64_t> seq_serials;  // [B]
  HostArray<int64_t> row_serials;  // [R]
  std::vector<PromptEnd> prompt_ends;

 private:
  void AddSequence(int32_t slot, SequenceSet* sequences);
  void AddTokens(const Sequence& sequence);
  void AddMropeOffsets(const Sequence& sequence);
  void AddOutputs(int32_t slot, const Sequence& sequence, const SequenceSet& sequences);
  void AddOutput(int32_t slot, const Sequence& owner, const Sequence& source);
  void AddRow(int32_t slot, const Sequence& owner, const Sequence& source);
  void AddDraftRows(int32_t slot, const Sequence& sequence);
  void FillTables(SequenceSet* sequences);
  void FillStates(const SequenceSet& sequences, int32_t group);
  void FillTableRow(int32_t row, Sequence* sequence, int32_t group);
  void FillCopies(const std::vector<BlockCopy>& copies);

  int32_t IdOfDraft(int32_t draft, int32_t row) const;

  const int32_t block_size_;
  const int32_t first_draft_name_;  // 0: unknown drafts have none
  std::vector<int32_t> verifying_;  // slots, while the batch is filled
  std::vector<int32_t> chunks_;
};

// The outputs of a batch, kept while the next batch is filled.
class KeptOutputs {
 public:
  explicit KeptOutputs(const SchedulerConfig& config);

  void Keep(const OutputView& outputs);
  OutputView view() const {
    return {&prompt_ends_, count_,          row_cu_.data(), ids_.data(),
            slots_.data(), serials_.data(), drafts_.data()};
  }

 private:
  std::vector<PromptEnd> prompt_ends_;
  int32_t count_ = 0;
  HostArray<int32_t> row_cu_;
  HostArray<int64_t> ids_;
  HostArray<int32_t> slots_;
  HostArray<int64_t> serials_;
  HostArray<int32_t> drafts_;
};

// Those of the batches in flight, the oldest first.
class OutputsInFlight {
 public:
  explicit OutputsInFlight(const SchedulerConfig& config);

  bool empty() const { return count_ == 0; }
  bool full() const { return count_ == kept_.size(); }
  size_t size() const { return count_; }
  OutputView operator[](size_t index) const { return kept_[Place(index)].view(); }
  void Keep(const OutputView& outputs) { kept_[Place(count_++)].Keep(outputs); }
  void DropOldest();

 private:
  size_t Place(size_t index) const { return (first_ + index) % kept_.size(); }

  std::vector<KeptOutputs> kept_;  // a ring
  size_t first_ = 0;
  size_t count_ = 0;
};

// What a commit did: one row per output of the batch, then one without tokens for each sequence
// that ended with its prompt. If its sequence was aborted meanwhile, a row has no tokens and no
// finish reason.
struct StepResult {
  explicit StepResult(const SchedulerConfig& config);

  // For an output of a sequence that ended meanwhile.
  void SetNothing(int32_t output);

  int32_t num_rows = 0;  // O below, prompt ends included
  int32_t width = 0;
  HostArray<int64_t> ids;            // [O]
  HostArray<int32_t> tokens;         // [O, width], padded with -1
  HostArray<int32_t> num_tokens;     // [O]
  HostArray<int32_t> num_drafts;     // [O], of them num_tokens - 1 were accepted at most
  HostArray<uint8_t> finish;         // [O] FinishReason
  HostArray<int32_t> cached_tokens;  // [O]
  HostArray<float> queue_seconds;  // [O], of the sequence: from its arrival to its first admission
};

}  // namespace rtp_llm

#pragma once

#include <cstdint>
#include <vector>

#include "rtp_llm/cpp/cache/cache_manager.h"
#include "rtp_llm/cpp/cache/host_array.h"
#include "rtp_llm/cpp/scheduler/config.h"
#include "rtp_llm/cpp/scheduler/sequence_set.h"

namespace rtp_llm {

// The most tokens that one row can commit in a step.
constexpr int32_t kMaxCommitWidth = 64;

// Whose tokens the rows of a batch are.
struct RowOwners {
  int32_t count;
  const int64_t* ids;
  const int32_t* slots;
  const int64_t* serials;
};

// One step's input. B sequences with T tokens in all, sequences with a single token first; R of
// them (num_rows) have all their tokens computed by this step and draw. Arrays keep their place for
// ever, only their live part changes.
class Batch {
 public:
  struct GroupArrays {
    GroupArrays(const SchedulerConfig& config, const CacheGroup& group);

    // Full and sliding-window groups:
    HostArray<int32_t> slot_mapping;  // [T] block * block_size + offset
    HostArray<int32_t> block_table;   // [B, table_width], kNullBlock where there is none
    HostArray<int32_t> copy_pairs;    // [P, 2] source, target
    // Recurrent groups, the block of the state before a sequence's first token (kNullBlock: start
    // from zeros) and after its last one. No row writes a block that another one reads or writes.
    HostArray<int32_t> state_read;   // [B]
    HostArray<int32_t> state_write;  // [B]
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

  // `block_size` is that of the full and sliding-window groups.
  Batch(const SchedulerConfig& config, int32_t block_size);

  // Fills everything from the sequences' step_tokens.
  void Fill(SequenceSet* sequences, const std::vector<BlockCopy>& copies);
  void Clear();
  RowOwners owners() const {
    return {num_rows, row_ids.data(), row_slots.data(), row_serials.data()};
  }

  int32_t num_seqs = 0;
  int32_t num_tokens = 0;
  int32_t num_rows = 0;
  int32_t max_seqlen_q = 0;
  int32_t max_seqlen_k = 0;
  int32_t sampling_flags = 0;

  // A token that the batch in flight draws is -(its row there + 1), here and in history_tokens.
  HostArray<int32_t> token_ids;     // [T]
  HostArray<int32_t> positions;     // [T]
  HostArray<int32_t> cu_seqlens_q;  // [B + 1]
  HostArray<int32_t> seq_lens;      // [B] length of keys and values after the step
  HostArray<int64_t> seq_ids;       // [B]
  HostArray<int32_t> seq_slots;     // [B]
  HostArray<int64_t> seq_serials;   // [B]
  std::vector<GroupArrays> groups;

  HostArray<int32_t> logit_rows;   // [R] token whose hidden state gives the row
  HostArray<int64_t> row_ids;      // [R]
  HostArray<int32_t> row_slots;    // [R]
  HostArray<int64_t> row_serials;  // [R]
  HostArray<int64_t> row_steps;    // [R] index of the token to draw in its sequence's output

  HostArray<int32_t> history_tokens;  // [history_cu[R]]
  HostArray<int32_t> history_cu;      // [R + 1]

 private:
  void AddSequence(int32_t slot, Sequence* sequence);
  void AddTokens(const Sequence& sequence);
  void AddRows(int32_t slot, const Sequence& sequence, const SequenceSet& sequences);
  void AddRow(int32_t slot, const Sequence& owner, const Sequence& source);
  void FillTables(SequenceSet* sequences);
  void FillStates(const SequenceSet& sequences, int32_t group);
  void FillTableRow(int32_t row, Sequence* sequence, int32_t group);
  void FillCopies(const std::vector<BlockCopy>& copies);

  const int32_t block_size_;
};

// The owners of a batch's rows, kept while the next batch is filled.
class KeptOwners {
 public:
  explicit KeptOwners(const SchedulerConfig& config);

  void Keep(const RowOwners& owners);
  RowOwners view() const { return {count_, ids_.data(), slots_.data(), serials_.data()}; }

 private:
  int32_t count_ = 0;
  HostArray<int64_t> ids_;
  HostArray<int32_t> slots_;
  HostArray<int64_t> serials_;
};

// What a commit did, one entry per row of the batch. A row whose sequence was aborted meanwhile has
// no tokens.
struct StepResult {
  explicit StepResult(const SchedulerConfig& config);

  int32_t num_rows = 0;
  int32_t width = 0;
  HostArray<int64_t> ids;            // [R]
  HostArray<int32_t> tokens;         // [R, width], padded with -1
  HostArray<int32_t> num_tokens;     // [R]
  HostArray<uint8_t> finish;         // [R] FinishReason
  HostArray<int32_t> cached_tokens;  // [R]
  HostArray<float> queue_seconds;  // [R], of the sequence: from its arrival to its first admission
};

}  // namespace rtp_llm

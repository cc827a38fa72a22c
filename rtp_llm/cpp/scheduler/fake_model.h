// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "rtp_llm/cpp/scheduler/fake_truth.h"
#include "rtp_llm/cpp/scheduler/scheduler.h"

namespace rtp_llm {

// Stands in for the device and its model in tests. It samples tokens when it runs a batch, so that
// the next one can name them by their rows; the test commits them when it likes. A cache cell holds
// a number that depends on every token up to its position, on what else the prompt is made of up to
// there and on the extra key, so that whatever a sequence would read can be compared with what it
// should read; a draft's cell depends on the drafts before it, too. A block of a recurrent group is
// one state: the number of the last token that it has seen, and after a step with drafts those of
// the tokens before, to which it can go back. Blocks that nobody holds are overwritten before every
// step.
class FakeModel {
 public:
  explicit FakeModel(Scheduler* scheduler) : scheduler_(*scheduler) {
    for (const CacheGroup& group : scheduler_.config().groups) {
      const size_t blocks = group.num_blocks;
      sizes_.push_back(group.block_size);
      cells_.emplace_back(group.IsRecurrent() ? 0 : blocks * sizes_.back(), kPoison);
      states_.emplace_back(group.IsRecurrent() ? blocks : 0);
    }
  }

  void Add(int64_t id, const std::vector<int32_t>& prompt, const std::string& extra_key,
           const PromptInputs& inputs = {}) {
    Truth& truth = truths_[id];
    truth.inputs = inputs;
    truth.last = std::hash<std::string>()(extra_key) | 1;
    for (const int32_t token : prompt) truth.Append(token);
  }
  void Append(int64_t id, int32_t token) { truths_.at(id).Append(token); }
  void Remove(int64_t id) { truths_.erase(id); }

  // The next token of a sequence: a function of its tokens, so that the order of steps changes
  // nothing.
  int32_t Next(int64_t id, int32_t vocabulary) const { return truths_.at(id).Next(id, vocabulary); }
  // The tokens that it will get, in order.
  std::vector<int32_t> Continuation(int64_t id, int32_t count, int32_t vocabulary) const {
    Truth truth = truths_.at(id);
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < count; ++i) {
      tokens.push_back(truth.Next(id, vocabulary));
      truth.Append(tokens.back());
    }
    return tokens;
  }

  // Samples a token for each row of an output of the batch that ran last, and accepts drafts: the
  // tokens that result. -1 for a sequence that was removed. The next batch is corrected by the
  // number of drafts that were rejected.
  std::vector<int32_t> Sample(int32_t output, int32_t vocabulary) {
    const Batch& batch = scheduler_.batch();
    const int32_t begin = batch.row_cu[output];
    const int32_t end = batch.row_cu[output + 1];
    sampled_.resize(batch.num_rows, -1);
    rejected_.resize(batch.num_rows, 0);
    const int64_t id = batch.row_ids[begin];
    const auto found = truths_.find(id);
    if (found == truths_.end()) return {-1};
    std::vector<int32_t> tokens;
    Truth guess = found->second;  // the rows after a wrong draft continue from it
    for (int32_t row = begin; row < end; ++row) {
      sampled_[row] = guess.Next(id, vocabulary);
      const bool accepted = row == begin + static_cast<int32_t>(tokens.size());
      if (accepted && (row == begin || batch.draft_tokens[row - 1] == tokens.back())) {
        tokens.push_back(sampled_[row]);
      }
      if (row + 1 < end) guess.Append(std::max(0, batch.draft_tokens[row]));
    }
    for (const int32_t token : tokens) found->second.Append(token);
    sampled_[end - 1] = tokens.back();
    rejected_[end - 1] = end - begin - static_cast<int32_t>(tokens.size());
    return tokens;
  }

  // A transfer writes into these blocks, per group: nonsense, or from entry `first` on what the
  // sequence's first `arrived` tokens are to leave there.
  void Scribble(const std::vector<std::vector<int32_t>>& blocks) {
    for (size_t g = 0; g < cells_.size(); ++g) {
      for (const int32_t block : blocks[g]) {
        if (block != kNullBlock) Poison(g, block);
      }
    }
  }
  void Receive(int64_t id, int32_t first, int32_t arrived,
               const std::vector<std::vector<int32_t>>& blocks) {
    std::vector<uint64_t> truth = truths_.at(id).cells;
    truth.resize(arrived);
    for (size_t g = 0; g < cells_.size(); ++g) {
      if (IsRecurrent(g)) {
        ASSERT_EQ(blocks[g].size(), 1u);
        states_[g][blocks[g][0]] = {static_cast<int32_t>(truth.size()), {truth.back()}};
        continue;
      }
      for (size_t i = 0; i < blocks[g].size(); ++i) {
        if (blocks[g][i] == kNullBlock) continue;
        const size_t begin = (first + i) * sizes_[g];
        if (begin >= truth.size()) break;
        const size_t count = std::min<size_t>(sizes_[g], truth.size() - begin);
        std::copy_n(&truth[begin], count, CellsOf(g, blocks[g][i]));
      }
    }
  }

  // Runs the batch. Sequences that were removed meanwhile are not checked.
  void Run() {
    Batch& batch = scheduler_.batch();
    for (size_t g = 0; g < cells_.size(); ++g) {
      // In this order: the source of a copy may be free already, and is not given out in this step.
      Copy(static_cast<int32_t>(g));
      PoisonFree(static_cast<int32_t>(g));
    }
    ASSERT_EQ(batch.cu_seqlens_q[0], 0);
    ASSERT_EQ(batch.cu_seqlens_q[batch.num_seqs], batch.num_tokens);
    ASSERT_LE(batch.num_tokens, scheduler_.config().max_batch_tokens);
    for (size_t g = 0; g < cells_.size(); ++g) {
      if (IsRecurrent(g)) UpdateStates(g);
    }
    int32_t longest_query = 0;
    int32_t longest = 0;
    for (int32_t b = 0; b < batch.num_seqs; ++b) {
      Write(b);
      longest_query = std::max(longest_query, batch.cu_seqlens_q[b + 1] - batch.cu_seqlens_q[b]);
      longest = std::max(longest, batch.seq_lens[b]);
    }
    ASSERT_EQ(batch.max_seqlen_q, longest_query);
    ASSERT_EQ(batch.max_seqlen_k, longest);
    for (int32_t b = 0; b < batch.num_seqs; ++b) Read(b);
    CheckRows();
  }

 private:
  // How much shorter sequence row b is than the batch says: drafts were taken for right.
  int32_t Shift(int32_t b) const {
    const Batch& batch = scheduler_.batch();
    const int32_t id = batch.token_ids[batch.cu_seqlens_q[b]];
    return id < 0 ? rejected_.at(static_cast<size_t>(-1 - id)) : 0;
  }
  int32_t LengthOf(int32_t b) const { return scheduler_.batch().seq_lens[b] - Shift(b); }

  bool IsRecurrent(size_t group) const { return scheduler_.config().groups[group].IsRecurrent(); }
  uint64_t* CellsOf(size_t group, int32_t block) {
    return &cells_[group][static_cast<size_t>(block) * sizes_[group]];
  }

  void Poison(size_t group, int32_t block) {
    if (IsRecurrent(group)) {
      states_[group][block] = {};
    } else {
      std::fill_n(CellsOf(group, block), sizes_[group], kPoison);
    }
  }

  // Sequences may be computed in any order, so none may write what another one reads; and a
  // published state is never written again.
  void CheckStateBlocks(size_t group) {
    const Batch& batch = scheduler_.batch();
    const Batch::GroupArrays& arrays = batch.groups[group];
    const CacheGroup& layout = scheduler_.config().groups[group];
    const BlockPool& pool = scheduler_.cache().pool(static_cast<int32_t>(group));
    std::map<int32_t, int32_t> readers;
    std::set<int32_t> written;
    for (int32_t b = 0; b < batch.num_seqs; ++b) ++readers[arrays.state_read[b]];
    for (int32_t b = 0; b < batch.num_seqs; ++b) {
      const int32_t block = arrays.state_write[b];
      ASSERT_GE(block, layout.first_block);
      ASSERT_LT(block, layout.num_blocks);
      ASSERT_TRUE(written.insert(block).second) << "two sequences write one state";
      ASSERT_EQ(readers[block], arrays.state_read[b] == block ? 1 : 0) << "another one reads it";
      const bool live = truths_.count(batch.seq_ids[b]) > 0;
      ASSERT_TRUE(!live || pool.references(Holder::kCache, block) == 0) << "it is published";
      ASSERT_TRUE(!live || pool.references(Holder::kPin, block) == 0) << "it is being sent";
    }
  }

  void UpdateStates(size_t group) {
    ASSERT_NO_FATAL_FAILURE(CheckStateBlocks(group));
    const Batch& batch = scheduler_.batch();
    const Batch::GroupArrays& arrays = batch.groups[group];
    for (int32_t b = 0; b < batch.num_seqs; ++b) {
      State& state = states_[group][arrays.state_write[b]];
      const auto found = truths_.find(batch.seq_ids[b]);
      if (found == truths_.end()) {
        state = {};
        continue;
      }
      const std::vector<uint64_t> truth = WithDrafts(found->second, b).cells;
      const int32_t end = LengthOf(b);
      const int32_t first = end - (batch.cu_seqlens_q[b + 1] - batch.cu_seqlens_q[b]);
      const int32_t read = arrays.state_read[b];
      ASSERT_EQ(read == kNullBlock, first == 0) << "only the first token has no state before it";
      if (first > 0) {
        ASSERT_EQ(states_[group][read].After(first), truth[first - 1])
            << "sequence " << batch.seq_ids[b] << " would go on from a wrong state at " << first;
      }
      // In a chunk of a prompt, only the last state.
      const auto known = static_cast<int32_t>(found->second.cells.size());
      const int32_t oldest = end > known ? known : end;
      state = {oldest, {truth.begin() + (oldest - 1), truth.begin() + end}};
    }
  }

  void PoisonFree(int32_t group) {
    const BlockPool& pool = scheduler_.cache().pool(group);
    for (int32_t block = pool.first_block(); block < pool.end_block(); ++block) {
      if (pool.references(Holder::kRequest, block) + pool.references(Holder::kCache, block) +
              pool.references(Holder::kPin, block) ==
          0) {
        Poison(group, block);
      }
    }
  }

  void Copy(int32_t group) {
    const Batch::GroupArrays& arrays = scheduler_.batch().groups[group];
    const int32_t size = sizes_[group];
    ASSERT_TRUE(arrays.num_copies == 0 || !IsRecurrent(group));
    std::set<int32_t> sources;
    std::set<int32_t> targets;
    for (int32_t i = 0; i < arrays.num_copies; ++i) {
      const int32_t source = arrays.copy_pairs[2 * i];
      const int32_t target = arrays.copy_pairs[2 * i + 1];
      sources.insert(source);
      ASSERT_TRUE(targets.insert(target).second) << "two copies into one block";
      std::copy_n(&cells_[group][static_cast<size_t>(source) * size], size,
                  &cells_[group][static_cast<size_t>(target) * size]);
    }
    for (const int32_t target : targets) ASSERT_EQ(sources.count(target), 0u) << "chained copies";
  }

  void Write(int32_t b) {
    Batch& batch = scheduler_.batch();
    const auto found = truths_.find(batch.seq_ids[b]);
    const int32_t begin = batch.cu_seqlens_q[b];
    const int32_t end = batch.cu_seqlens_q[b + 1];
    ASSERT_GT(end, begin);
    const int32_t shift = Shift(b);
    if (found == truths_.end()) {  // the device writes all the same; none may read it
      for (size_t g = 0; g < cells_.size(); ++g) {
        if (IsRecurrent(g)) continue;
        for (int32_t t = begin; t < end; ++t) {
          cells_[g][SlotOf(static_cast<int32_t>(g), b, batch.positions[t] - shift)] = kPoison;
        }
      }
      return;
    }
    const Truth truth = WithDrafts(found->second, b);
    const int32_t length = LengthOf(b);
    ASSERT_LE(length, static_cast<int32_t>(truth.tokens.size()));
    for (int32_t t = begin; t < end; ++t) {
      const int32_t position = length - (end - t);
      ASSERT_EQ(batch.positions[t] - shift, position);
      ASSERT_EQ(Resolved(batch.token_ids[t]), truth.tokens[position]);
      CheckOffsets(t, position, truth.inputs);
      for (size_t g = 0; g < cells_.size(); ++g) {
        if (IsRecurrent(g)) continue;
        const int32_t slot = SlotOf(static_cast<int32_t>(g), b, position);
        ASSERT_TRUE(shift > 0 || slot == batch.groups[g].slot_mapping[t]);
        cells_[g][slot] = truth.cells[position];
      }
    }
  }

  void CheckOffsets(int32_t token, int32_t position, const PromptInputs& inputs) {
    Batch& batch = scheduler_.batch();
    for (int32_t axis = 0; axis < kAxes && batch.mrope_offsets.size() > 0; ++axis) {
      int32_t offsets[kAxes];
      inputs.CopyMropeOffsets(position, offsets);
      ASSERT_EQ(batch.mrope_offsets[static_cast<size_t>(token) * kAxes + axis], offsets[axis]);
    }
  }

  // What sequence row b knows in this step: its tokens, then its drafts.
  Truth WithDrafts(Truth truth, int32_t b) const {
    const Batch& batch = scheduler_.batch();
    const int32_t last = batch.cu_seqlens_q[b + 1] - 1;
    const int32_t row = static_cast<int32_t>(
        std::find(batch.logit_rows.data(), batch.logit_rows.data() + batch.num_rows, last) -
        batch.logit_rows.data());
    if (row == batch.num_rows) return truth;  // a chunk of a prompt
    const int32_t* cu = batch.row_cu.data();
    const int32_t first = *(std::upper_bound(cu, cu + batch.num_outputs, row) - 1);
    for (int32_t draft = first; draft < row; ++draft) {
      truth.Append(std::max(0, batch.draft_tokens[draft]));
    }
    return truth;
  }

  // What an id stands for; of those sampled on the device only the row is known.
  int32_t Resolved(int32_t id) const {
    return id >= 0 ? id : sampled_.at(static_cast<size_t>(-1 - id));
  }

  int32_t SlotOf(int32_t group, int32_t b, int32_t position) {
    const Batch::GroupArrays& arrays = scheduler_.batch().groups[group];
    const int32_t size = scheduler_.cache().block_size();
    const size_t row = static_cast<size_t>(b) * arrays.table_width;
    const int32_t block = arrays.block_table[row + position / size];
    const CacheGroup& layout = scheduler_.config().groups[group];
    EXPECT_GE(block, layout.first_block);
    EXPECT_LT(block, layout.num_blocks);
    return block * size + position % size;
  }

  void Read(int32_t b) {
    Batch& batch = scheduler_.batch();
    const auto found = truths_.find(batch.seq_ids[b]);
    if (found == truths_.end()) return;
    const Truth truth = WithDrafts(found->second, b);
    const int32_t end = LengthOf(b);
    const int32_t first_query = end - (batch.cu_seqlens_q[b + 1] - batch.cu_seqlens_q[b]);
    const int32_t size = scheduler_.cache().block_size();
    for (size_t g = 0; g < cells_.size(); ++g) {
      const CacheGroup& layout = scheduler_.config().groups[g];
      if (layout.IsRecurrent()) continue;
      const bool windowed = layout.kind == GroupKind::kSlidingWindow;
      const int32_t visible = windowed ? std::max(0, first_query - layout.window + 1) : 0;
      for (int32_t position = visible; position < end; ++position) {
        const int32_t slot = SlotOf(static_cast<int32_t>(g), b, position);
        ASSERT_EQ(cells_[g][slot], truth.cells[position])
            << "sequence " << batch.seq_ids[b] << " would read another's position " << position;
      }
      if (scheduler_.config().optimistic_drafts) continue;  // it has blocks for any length
      const Batch::GroupArrays& arrays = batch.groups[g];
      const int32_t* row = &arrays.block_table[static_cast<size_t>(b) * arrays.table_width];
      for (int32_t i = 0; i < arrays.table_width; ++i) {
        const bool live = i >= visible / size && i * size < end;
        ASSERT_TRUE(live || row[i] == kNullBlock) << "entry " << i << " of sequence row " << b;
      }
    }
  }

  void CheckRows() {
    const Batch& batch = scheduler_.batch();
    ASSERT_EQ(batch.history_cu[0], 0);
    ASSERT_EQ(batch.row_cu[0], 0);
    ASSERT_EQ(batch.row_cu[batch.num_outputs], batch.num_rows);
    for (int32_t output = 0; output < batch.num_outputs; ++output) CheckOutput(output);
  }

  void CheckOutput(int32_t output) {
    const Batch& batch = scheduler_.batch();
    const int32_t first = batch.row_cu[output];
    const int32_t end = batch.row_cu[output + 1];
    ASSERT_LT(first, end);
    const int32_t last_token = batch.logit_rows[end - 1] + 1;
    const int32_t* cu = batch.cu_seqlens_q.data();
    const int32_t* last = std::lower_bound(cu, cu + batch.num_seqs + 1, last_token);
    ASSERT_EQ(*last, last_token) << "not the last token of a sequence";
    const auto found = truths_.find(batch.row_ids[first]);
    if (found == truths_.end()) return;
    std::vector<int32_t> tokens = found->second.tokens;
    const int32_t length = LengthOf(static_cast<int32_t>(last - cu) - 1);
    ASSERT_EQ(static_cast<size_t>(length), tokens.size() + end - 1 - first);
    for (int32_t row = first; row < end; ++row) {
      ASSERT_EQ(batch.logit_rows[row], last_token - (end - row));
      ASSERT_EQ(batch.row_ids[row], batch.row_ids[first]);
      ASSERT_EQ(batch.row_slots[row], batch.row_slots[first]);
      if (row > first) tokens.push_back(std::max(0, batch.draft_tokens[row - 1]));
      CheckHistory(batch.history_cu[first], batch.history_cu[row + 1], tokens);
    }
    ASSERT_EQ(batch.draft_tokens[end - 1], -1);
  }

  void CheckHistory(int32_t begin, int32_t end, const std::vector<int32_t>& tokens) {
    if (begin == end) return;
    ASSERT_EQ(static_cast<size_t>(end - begin), tokens.size());
    for (int32_t i = begin; i < end; ++i) {
      ASSERT_EQ(Resolved(scheduler_.batch().history_tokens[i]), tokens[i - begin]);
    }
  }

  Scheduler& scheduler_;
  std::unordered_map<int64_t, Truth> truths_;
  std::vector<int32_t> sizes_;                // cells of a block, per group
  std::vector<std::vector<uint64_t>> cells_;  // per group, none of recurrent ones
  std::vector<std::vector<State>> states_;    // per recurrent group
  // Per row of the batch that ran last; an output's last row has its last accepted token, and how
  // many drafts were rejected.
  std::vector<int32_t> sampled_;
  std::vector<int32_t> rejected_;
};

}  // namespace rtp_llm

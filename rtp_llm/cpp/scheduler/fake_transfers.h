// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "rtp_llm/cpp/scheduler/fake_model.h"
#include "rtp_llm/cpp/scheduler/scheduler.h"

namespace rtp_llm {

// Stands in for the other worker and the way to it. A transfer writes when it likes, also after its
// sequence has ended: first nonsense, and what the blocks are to hold only at its very end.
class FakeTransfers {
 public:
  FakeTransfers(Scheduler* scheduler, FakeModel* model) : scheduler_(*scheduler), model_(*model) {}

  // Handles the sequences that began to receive.
  void Begin() {
    const int32_t size = scheduler_.cache().block_size();
    for (const Receiver& receiver : scheduler_.TakeReceivers()) {
      const int32_t first = receiver.computed / size;
      const int32_t end = (receiver.end + size - 1) / size;
      ASSERT_LT(first, end);
      transfers_[receiver.id] = {first, receiver.end, scheduler_.Pin(receiver.id, first, end)};
    }
  }

  void WriteNonsense() {
    for (const auto& [id, transfer] : transfers_) {
      model_.Scribble(transfer.blocks);
    }
  }

  bool empty() const { return transfers_.empty(); }
  int64_t Pick(uint32_t number) const {
    return std::next(transfers_.begin(), number % transfers_.size())->first;
  }

  int32_t EndOf(int64_t id) const { return transfers_.at(id).end; }
  int32_t BeginOf(int64_t id) const {
    return transfers_.at(id).first * scheduler_.cache().block_size();
  }

  // What the sequence's first `arrived` tokens are to leave in its blocks is in them; 0: the
  // transfer is given up.
  void End(int64_t id, int32_t arrived) {
    const Transfer transfer = transfers_.at(id);
    if (arrived > 0) model_.Receive(id, transfer.first, arrived, transfer.blocks);
    transfers_.erase(id);
    ASSERT_TRUE(scheduler_.Unpin(id));
    ASSERT_FALSE(scheduler_.Unpin(id));
  }

 private:
  // Tokens up to `end`, into blocks from entry `first` on.
  struct Transfer {
    int32_t first;
    int32_t end;
    std::vector<std::vector<int32_t>> blocks;
  };

  Scheduler& scheduler_;
  FakeModel& model_;
  std::map<int64_t, Transfer> transfers_;
};

}  // namespace rtp_llm

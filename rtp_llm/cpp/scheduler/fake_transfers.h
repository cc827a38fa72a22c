// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "rtp_llm/cpp/scheduler/fake_model.h"
#include "rtp_llm/cpp/scheduler/scheduler.h"

namespace rtp_llm {

// Stands in for the other worker and the way to it. A transfer writes when it likes, also after its
// sequence has ended: first nonsense, and what the blocks are to hold only at its very end.
class FakeTransfers {
 public:
  FakeTransfers(Scheduler* scheduler, FakeModel* model) : scheduler_(*scheduler), model_(*model) {}

  // Of the sequences that began to receive; `length_of(id)` is their prompt's.
  template <typename Lengths>
  void Begin(const Lengths& length_of) {
    const int32_t size = scheduler_.cache().block_size();
    for (const Receiver& receiver : scheduler_.TakeReceivers()) {
      const int32_t first = receiver.cached_tokens / size;
      const int32_t end = (length_of(receiver.id) + size - 1) / size;
      ASSERT_LT(first, end);
      transfers_[receiver.id] = {first, scheduler_.Pin(receiver.id, first, end)};
    }
  }

  void WriteNonsense() {
    for (const auto& [id, transfer] : transfers_) {
      model_.Scribble(transfer.second);
    }
  }

  bool empty() const { return transfers_.empty(); }
  int64_t Pick(uint32_t number) const {
    return std::next(transfers_.begin(), number % transfers_.size())->first;
  }

  // What the sequence's blocks are to hold is in them; or the transfer is given up.
  void End(int64_t id, bool complete) {
    const auto [first, blocks] = transfers_.at(id);
    if (complete) model_.Receive(id, first, blocks);
    transfers_.erase(id);
    ASSERT_TRUE(scheduler_.Unpin(id));
    ASSERT_FALSE(scheduler_.Unpin(id));
  }

 private:
  Scheduler& scheduler_;
  FakeModel& model_;
  std::map<int64_t, std::pair<int32_t, std::vector<std::vector<int32_t>>>> transfers_;
};

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
// What tests share that run kernels on random batches, in buffers of exactly their size.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "rtp_llm/kernels/common/parallel.h"

namespace rtp_llm::cpu {

// Runs the workers one after another, each with its own part of the scratch.
class ManyOnOneThread final : public ParallelFor {
 public:
  explicit ManyOnOneThread(int threads) : threads_(threads) {}
  void operator()(int64_t begin, int64_t end, int64_t /*grain*/, Body body) const override {
    for (int64_t i = begin; i < end; ++i) body(i, i + 1);
  }
  int num_threads() const override { return threads_; }

 private:
  int threads_;
};

// Sizes of a batch; the same ones for the same seed.
class RandomSizes {
 public:
  explicit RandomSizes(int seed) : random_(seed) {}

 protected:
  int number(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  int pick(std::vector<int> from) { return from[number(0, static_cast<int>(from.size()) - 1)]; }

  std::mt19937 random_;
};

}  // namespace rtp_llm::cpu

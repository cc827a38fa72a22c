// SPDX-License-Identifier: Apache-2.0
// How kernels spread work over threads without knowing who owns the threads.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/function_ref.h"

namespace rtp_llm {

// body(begin, end) over disjoint ranges that cover [begin, end). A body must not throw.
class ParallelFor {
 public:
  using Body = FunctionRef<void(int64_t begin, int64_t end)>;

  virtual ~ParallelFor() = default;
  // At least `grain` iterations go to a thread; with no more than that the caller's thread does it.
  virtual void operator()(int64_t begin, int64_t end, int64_t grain, Body body) const = 0;
  virtual int num_threads() const = 0;
};

// Everything on the caller's thread: for tests of kernels.
class SerialFor final : public ParallelFor {
 public:
  void operator()(int64_t begin, int64_t end, int64_t /*grain*/, Body body) const override {
    if (begin < end) body(begin, end);
  }
  int num_threads() const override { return 1; }
};

// Rows per thread so that a thread gets about `bytes` of work: below that, waking it costs more.
constexpr int64_t grain_rows(int64_t bytes_per_row, int64_t bytes = 128 * 1024) {
  return bytes_per_row >= bytes ? 1 : bytes / (bytes_per_row > 0 ? bytes_per_row : 1);
}

}  // namespace rtp_llm

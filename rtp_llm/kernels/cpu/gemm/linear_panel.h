// SPDX-License-Identifier: Apache-2.0
// Where linear.cc and linear_int8.cc keep rows of x while the weight passes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace rtp_llm::cpu {

// Memory aligned to 64 bytes that only grows.
class Buffer {
 public:
  void* at_least(int64_t bytes) {
    if (bytes > size_) {
      constexpr int64_t kAlignment = 64;
      const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      memory_.reset();
      size_ = 0;
      memory_.reset(std::aligned_alloc(kAlignment, static_cast<size_t>(rounded)));
      if (memory_ == nullptr) throw std::bad_alloc();
      size_ = rounded;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  std::unique_ptr<void, Free> memory_;
  int64_t size_ = 0;
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of x to pack at a time: as many as leave most of a core's second-level cache (1 MB and more)
// to the weights, in blocks of nearly equal size and of whole tiles.
inline int64_t panel_rows(int64_t rows, int64_t row_bytes, int tile_rows) {
  constexpr int64_t kMaxBytes = 384 * 1024;
  constexpr int64_t kMaxRows = 192;
  const int64_t fitting = kMaxBytes / std::max<int64_t>(1, row_bytes) / tile_rows * tile_rows;
  const int64_t most = std::clamp<int64_t>(fitting, 2 * tile_rows, kMaxRows);
  const int64_t even = ceil_div(rows, ceil_div(rows, most));
  return std::min(most, ceil_div(even, tile_rows) * tile_rows);
}

}  // namespace rtp_llm::cpu

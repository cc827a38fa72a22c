// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rtp_llm/cpp/cache_store/store/block.h"

namespace rtp_llm {

// A position in the concatenated bytes of several spans, for readv and writev.
class SpanCursor {
 public:
  SpanCursor() = default;
  explicit SpanCursor(std::vector<Span> spans);

  // The next pieces: at most `capacity`, of about `bytes` together. Neighbours in memory are one.
  size_t Pieces(iovec* pieces, size_t capacity, size_t bytes) const;
  // Goes on by `bytes` of them, at most left().
  void Advance(size_t bytes);
  uint64_t left() const { return left_; }

 private:
  std::vector<Span> spans_;
  size_t span_ = 0;
  uint32_t row_ = 0;
  uint64_t column_ = 0;  // of the row
  uint64_t left_ = 0;
};

// CRC-32C of the first `bytes` bytes of the pieces, continuing from `crc`.
uint32_t Crc32cOfPieces(uint32_t crc, const iovec* pieces, size_t bytes);

}  // namespace rtp_llm

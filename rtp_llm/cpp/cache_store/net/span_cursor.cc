// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/net/span_cursor.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "rtp_llm/cpp/cache_store/wire/crc32c.h"

namespace rtp_llm {
namespace {

// A span without gaps is one row.
Span Merged(const Span& span) {
  const uint64_t bytes = span.bytes();
  if (!span.contiguous() || bytes > std::numeric_limits<uint32_t>::max()) return span;
  return {span.base, 1, static_cast<uint32_t>(bytes), bytes};
}

}  // namespace

SpanCursor::SpanCursor(std::vector<Span> spans) : spans_(std::move(spans)) {
  for (Span& span : spans_) {
    span = Merged(span);
    left_ += span.bytes();
  }
}

size_t SpanCursor::Pieces(iovec* pieces, size_t capacity, size_t bytes) const {
  size_t count = 0;
  size_t taken = 0;
  uint32_t row = row_;
  uint64_t column = column_;
  for (size_t i = span_; i < spans_.size(); ++i, row = 0) {
    const Span& span = spans_[i];
    for (; row < span.rows; ++row, column = 0) {
      if (taken >= bytes) return count;
      char* const start = span.base + row * span.stride + column;
      const size_t size = std::min<size_t>(span.row_bytes - column, bytes - taken);
      if (count > 0 &&
          static_cast<char*>(pieces[count - 1].iov_base) + pieces[count - 1].iov_len == start) {
        pieces[count - 1].iov_len += size;
      } else if (count == capacity) {
        return count;
      } else {
        pieces[count++] = {start, size};
      }
      taken += size;
    }
  }
  return count;
}

void SpanCursor::Advance(size_t bytes) {
  left_ -= bytes;
  while (bytes > 0) {
    const Span& span = spans_[span_];
    const size_t step = std::min<size_t>(bytes, span.row_bytes - column_);
    bytes -= step;
    column_ += step;
    if (column_ < span.row_bytes) return;
    column_ = 0;
    if (++row_ < span.rows) continue;
    row_ = 0;
    ++span_;
  }
}

uint32_t Crc32cOfPieces(uint32_t crc, const iovec* pieces, size_t bytes) {
  for (; bytes > 0; ++pieces) {
    const size_t size = std::min(bytes, pieces->iov_len);
    crc = Crc32c(crc, pieces->iov_base, size);
    bytes -= size;
  }
  return crc;
}

}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/cpp/cache_store/net/span_cursor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "rtp_llm/cpp/cache_store/wire/crc32c.h"

namespace rtp_llm {
namespace {

TEST(SpanCursorTest, NeighboursInMemoryAreOnePiece) {
  std::string memory(64, 'x');
  char* const base = memory.data();
  const SpanCursor cursor({{base, 4, 4, 4}, {base + 16, 1, 8, 8}, {base + 32, 2, 4, 16}});
  iovec pieces[8];
  ASSERT_EQ(cursor.Pieces(pieces, 8, 1000), 3u);
  EXPECT_EQ(pieces[0].iov_base, base);
  EXPECT_EQ(pieces[0].iov_len, 24u);
  EXPECT_EQ(pieces[1].iov_base, base + 32);
  EXPECT_EQ(pieces[2].iov_base, base + 48);
  EXPECT_EQ(cursor.left(), 32u);
}

TEST(SpanCursorTest, GivesNoMoreThanItIsAskedFor) {
  std::string memory(64, 'x');
  const SpanCursor cursor({{memory.data(), 8, 4, 8}});
  iovec pieces[8];
  EXPECT_EQ(cursor.Pieces(pieces, 3, 1000), 3u);
  ASSERT_EQ(cursor.Pieces(pieces, 8, 6), 2u);
  EXPECT_EQ(pieces[1].iov_len, 2u);
  EXPECT_EQ(SpanCursor().Pieces(pieces, 8, 6), 0u);
}

// Reads spans in random steps, and compares with a plain copy of their rows.
TEST(SpanCursorTest, AnySpansInAnySteps) {
  std::mt19937 random(11);
  std::string memory(1 << 16, '\0');
  for (char& byte : memory) byte = static_cast<char>(random());
  for (int round = 0; round < 500; ++round) {
    std::vector<Span> spans;
    std::string expected;
    for (size_t i = 0, count = random() % 6; i < count; ++i) {
      const uint32_t bytes = 1 + random() % 40;
      Span span{nullptr, 1 + static_cast<uint32_t>(random() % 9), bytes, bytes + random() % 3 * 7};
      span.base = memory.data() + random() % (memory.size() - span.rows * span.stride);
      for (uint32_t row = 0; row < span.rows; ++row) {
        expected.append(span.base + row * span.stride, bytes);
      }
      spans.push_back(span);
    }
    SpanCursor cursor(spans);
    std::string read;
    uint32_t crc = 0;
    while (cursor.left() > 0) {
      iovec pieces[4];
      const size_t count = cursor.Pieces(pieces, 1 + random() % 4, 1 + random() % 100);
      size_t offered = 0;
      for (size_t i = 0; i < count; ++i) offered += pieces[i].iov_len;
      ASSERT_GT(offered, 0u);
      const size_t taken = 1 + random() % offered;
      crc = Crc32cOfPieces(crc, pieces, taken);
      for (size_t i = 0, left = taken; left > 0; ++i) {
        const size_t size = std::min(left, pieces[i].iov_len);
        read.append(static_cast<const char*>(pieces[i].iov_base), size);
        left -= size;
      }
      cursor.Advance(taken);
    }
    ASSERT_EQ(read, expected);
    ASSERT_EQ(crc, Crc32c(0, expected.data(), expected.size()));
  }
}

}  // namespace
}  // namespace rtp_llm

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace rtp_llm {

// Names a block among those of one request and layer. `plane` tells keys from values and from their
// scales, `position` counts blocks from the start of the sequence, and `content` is the block's
// hash in the prefix cache: two sides that mean different tokens never agree on a key.
struct BlockKey {
  uint32_t plane = 0;
  uint32_t position = 0;
  uint64_t content = 0;

  friend bool operator==(const BlockKey& a, const BlockKey& b) {
    return a.plane == b.plane && a.position == b.position && a.content == b.content;
  }
};

struct BlockKeyHash {
  size_t operator()(const BlockKey& key) const {
    const uint64_t place = static_cast<uint64_t>(key.plane) << 32 | key.position;
    return static_cast<size_t>((key.content ^ place * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu);
  }
};

// Memory of a block: `rows` pieces of `row_bytes`, `stride` bytes from one to the next. The heads
// of one rank out of several are such pieces of a block that holds all heads.
struct Span {
  char* base = nullptr;
  uint32_t rows = 0;
  uint32_t row_bytes = 0;
  uint64_t stride = 0;

  uint64_t bytes() const { return static_cast<uint64_t>(rows) * row_bytes; }
  bool contiguous() const { return rows == 1 || stride == row_bytes; }
};

struct Block {
  BlockKey key;
  Span span;
};

// For tensor-parallel sizes that differ: slice `index` of `count` equal slices of every row.
struct Partition {
  uint16_t count = 1;
  uint16_t index = 0;
};

}  // namespace rtp_llm

#pragma once

#include <algorithm>
#include <cstdint>

namespace rtp_llm {

enum class GroupKind {
  kFull,           // every block of a sequence stays live
  kSlidingWindow,  // only blocks that the next query can still see stay live, older ones become
                   // null
};

// Layers that share one block table and one pool of blocks: rows [first_block, num_blocks) of each
// layer's cache tensor, row 0 being the padding block. Two groups whose layers share tensors take
// disjoint ranges of rows.
//
// A kind is described by what it keeps, and nothing else in the runtime asks for the kind. A group
// of recurrent states (one block = the state after `block_size` tokens) will therefore be one more
// kind: FirstLiveBlock(position) = position / block_size - 1 keeps the latest snapshot only, prefix
// reuse needs just that tail block (as with a window), and a chunk of tokens touches one new block,
// for which BlocksForChunk() stands ready.
struct CacheGroup {
  GroupKind kind = GroupKind::kFull;
  int32_t num_blocks = 0;
  int32_t block_size = 16;
  int32_t window = 0;  // kSlidingWindow: a query sees itself and the window - 1 tokens before it
  int32_t first_block = 1;

  // True if a prefix is useless once one of its blocks is gone.
  bool NeedsWholeChain() const { return kind == GroupKind::kFull; }

  // The first block that a query at `position` (or later) reads.
  int32_t FirstLiveBlock(int32_t position) const {
    if (kind == GroupKind::kFull) return 0;
    return std::max(0, position - window + 1) / block_size;
  }

  // The most live blocks while `chunk` tokens are computed at once for a sequence that ends up
  // `length` tokens long.
  int32_t BlocksForChunk(int32_t length, int32_t chunk) const {
    const int32_t whole = BlocksForTokens(length);
    if (kind == GroupKind::kFull) return whole;
    const int64_t span = static_cast<int64_t>(window) + chunk - 1;
    return static_cast<int32_t>(std::min<int64_t>(whole, (span + block_size - 2) / block_size + 1));
  }

  int32_t BlocksForTokens(int32_t tokens) const {
    return tokens / block_size + (tokens % block_size != 0 ? 1 : 0);
  }
};

}  // namespace rtp_llm

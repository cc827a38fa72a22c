// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace rtp_llm {

enum class GroupKind {
  kFull,           // every block of a sequence stays live
  kSlidingWindow,  // only blocks that the next query can still see stay live, older ones become
                   // null
  kRecurrent,      // a block is one state (gated delta net, Mamba): only the latest stays live
};

// Layers that share one block table and one pool of blocks: rows [first_block, num_blocks) of each
// layer's cache tensor, row 0 being the padding block. Each group has a budget of its own. Two
// groups whose layers share tensors take disjoint ranges of rows.
//
// Block sizes: all full and sliding-window groups have one, which is also the size of a node of the
// prefix cache. All recurrent groups have one too, a multiple of it: their snapshots are as large
// as the keys and values of thousands of tokens, so only every k-th node may keep one. (A scheduler
// with recurrent groups only has just their size.)
//
// Recurrent groups: a step reads the state before its first token from one block and writes the
// state after its last token to another one or, where nobody else can see it, to the same. A state
// that was computed for exactly a multiple of block_size tokens may be published as a snapshot:
// prompts are cut into chunks that end there. A published block is never written again.
struct CacheGroup {
  GroupKind kind = GroupKind::kFull;
  int32_t num_blocks = 0;
  int32_t block_size = 16;
  int32_t window = 0;  // kSlidingWindow: a query sees itself and the window - 1 tokens before it
  int32_t first_block = 1;

  bool IsRecurrent() const { return kind == GroupKind::kRecurrent; }

  // True if a prefix is useless once one of its blocks is gone.
  bool NeedsWholeChain() const { return kind == GroupKind::kFull; }

  // The first block that a query at `position` (or later) reads.
  int32_t FirstLiveBlock(int32_t position) const {
    if (kind == GroupKind::kFull) return 0;
    if (IsRecurrent()) return std::max(0, position / block_size - 1);
    return std::max(0, position - window + 1) / block_size;
  }

  // The most live blocks while `chunk` tokens are computed at once for a sequence that ends up
  // `length` tokens long.
  int32_t BlocksForChunk(int32_t length, int32_t chunk) const {
    // A state that is kept, and the next one.
    if (IsRecurrent()) return length < block_size ? 1 : 2;
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

// SPDX-License-Identifier: Apache-2.0
// What paged_attention.cc hands to the kernels of one instruction set.
#pragma once

#include "rtp_llm/kernels/cpu/attention/paged_attention.h"

namespace rtp_llm::cpu {

// Rows are (query token, query head of the KV head) pairs, token first.
constexpr int kDirectRows = 8;   // up to this many rows, keys are read in place, not packed
constexpr int kPackedRows = 64;  // rows of a packed tile, unless one token already has more
constexpr int kPackedKeys = 64;  // keys of a packed tile
constexpr int kDirectKeys = 32;  // keys of a direct tile
constexpr int kLaneFloats = 16;  // head_dim is padded to this many floats in scratch

struct AttentionItem {
  const int32_t* table;    // the sequence's row of the block table
  float* partials;         // null: the item's result is final
  int64_t partial_stride;  // floats from one row of partials to the next
  int64_t first_token;     // row of q and out
  int num_tokens;
  int first_position;  // of the first token; may be negative for a padded sequence
  int first_head;      // KV heads [first_head, first_head + num_heads)
  int num_heads;
  int kv_begin, kv_end;
  bool direct;
};

// A partial is a row's sum of values [padded head_dim], its maximum and its sum of weights. A row's
// partials are contiguous, one per part of the keys.
constexpr int padded_head_dim(int head_dim) {
  return (head_dim + kLaneFloats - 1) / kLaneFloats * kLaneFloats;
}
constexpr int partial_floats(int head_dim) { return padded_head_dim(head_dim) + kLaneFloats; }

// A thread's scratch, in floats from a 64-byte boundary. A direct tile takes its rows for all its
// KV heads; a packed one for one head.
struct AttentionWorkspace {
  float* queries;  // [rows][padded head_dim]
  float* sums;     // [rows][padded head_dim]
  float* maxima;   // [rows]
  float* weights;  // [rows]
  float* scores;   // [packed rows][kPackedKeys]
  float* keys;     // [padded head_dim][kPackedKeys]
  float* values;   // [kPackedKeys][padded head_dim]

  AttentionWorkspace(const PagedAttentionArgs& args, float* base) {
    const int64_t packed = packed_rows(args), dim = padded_head_dim(args.head_dim);
    queries = base;
    sums = queries + rows(args) * dim;
    maxima = sums + rows(args) * dim;
    weights = maxima + rows(args);
    scores = weights + rows(args);
    keys = scores + packed * kPackedKeys;
    values = keys + dim * kPackedKeys;
  }

  static int64_t size(const PagedAttentionArgs& args) {
    const int64_t dim = padded_head_dim(args.head_dim);
    return 2 * rows(args) * (dim + 1) + packed_rows(args) * kPackedKeys + 2 * dim * kPackedKeys;
  }

 private:
  static int64_t packed_rows(const PagedAttentionArgs& args) {
    const int group = args.num_heads / args.num_kv_heads;
    return (group > kPackedRows ? group + kLaneFloats - 1 : kPackedRows) & ~(kLaneFloats - 1);
  }
  static int64_t rows(const PagedAttentionArgs& args) {
    const int64_t direct = (int64_t{kDirectRows} * args.num_kv_heads + 15) & ~int64_t{15};
    return direct > packed_rows(args) ? direct : packed_rows(args);
  }
};

struct AttentionKernels {
  void (*run_item)(const PagedAttentionArgs&, const AttentionItem&, float* workspace);
  // `item.partials` is the first row's first part here.
  void (*merge_partials)(const PagedAttentionArgs&, const AttentionItem&, int num_parts);
};

namespace scalar {
extern const AttentionKernels kAttentionKernels;
}
namespace avx2 {
extern const AttentionKernels kAttentionKernels;
}
namespace avx512 {
extern const AttentionKernels kAttentionKernels;
}
namespace avx512_bf16 {
extern const AttentionKernels kAttentionKernels;
}

}  // namespace rtp_llm::cpu

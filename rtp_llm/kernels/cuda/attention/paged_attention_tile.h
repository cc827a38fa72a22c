// SPDX-License-Identifier: Apache-2.0
// What a block of paged attention works on: some query rows of a sequence and a part of its keys.
// paged_attention_vector.h and paged_attention_matrix.h multiply them.
#pragma once

#include "rtp_llm/kernels/common/attention/paged_attention.h"
#include "rtp_llm/kernels/cuda/gpu.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {

// A sequence of the batch, with lengths cut to what is there.
struct Sequence {
  int first_token;
  int num_queries;
  int num_keys;
  const int32_t* blocks;

  __device__ Sequence(const PagedAttentionArgs& args, int index) {
    const int tokens = static_cast<int>(args.num_tokens);
    first_token = within(args.cu_seqlens_q[index], tokens);
    num_queries = max(within(args.cu_seqlens_q[index + 1], tokens) - first_token, 0);
    const int64_t room = args.table_width * args.block_size;
    num_keys = max(args.keys_of(index), 0);
    if (num_keys > room) num_keys = static_cast<int>(room);
    blocks = args.block_table + index * args.table_stride;
  }

  __device__ static int within(int value, int limit) { return min(max(value, 0), limit); }
};

// The keys [first, last) that a query at `position` sees.
struct Visible {
  int first;
  int last;

  __device__ Visible(const PagedAttentionArgs& args, int position, int num_keys) {
    first = args.window > 0 ? max(position - args.window + 1, 0) : 0;
    last = args.window_right > 0 ? min(position + args.window_right, num_keys) : num_keys;
  }
};

// One query row of a tile: its token and head, and the keys that it sees.
struct QueryRow {
  int row;  // in the sequence and KV head
  int token;
  int head;
  bool present;

  __device__ QueryRow(const PagedAttentionArgs& args, const Sequence& sequence, int index)
      : row(index) {
    const int group = args.num_heads / args.num_kv_heads;
    token = index / group;
    head = static_cast<int>(blockIdx.y) * group + index % group;
    present = token < sequence.num_queries;
  }

  __device__ int position(const Sequence& sequence) const {
    return sequence.num_keys - sequence.num_queries + token;
  }
};

// The part [first, last) of a sequence's keys that a block looks at.
struct KeyPart {
  int first;
  int last;
};

// What a row has gathered so far: sum of exp(score - top) times the values, and its parts.
template <class Shape>
struct Gathered {
  float top = -INFINITY;
  float total = 0.0f;
  float sum[Shape::kColumns] = {};
};

// Where a key or value of the tile's KV head lies; -1 when there is no such block.
__device__ inline int64_t place_of_key(const PagedAttentionArgs& args, const Sequence& sequence,
                                       int key) {
  const int64_t block = sequence.blocks[key / args.block_size];
  if (block < 0 || block >= args.num_blocks) return -1;
  return block * args.kv_block_stride + key % args.block_size * args.kv_token_stride;
}

// Which of those keys a query row sees, and its scores of them.
struct RowScores {
  const PagedAttentionArgs& args;
  const Sequence& sequence;
  KeyPart part;
  bool present;
  Visible visible;
  const float* bias = nullptr;

  __device__ RowScores(const PagedAttentionArgs& args_, const Sequence& sequence_,
                       const QueryRow& query, KeyPart part_)
      : args(args_),
        sequence(sequence_),
        part(part_),
        present(query.present),
        visible(args_, query.position(sequence_), sequence_.num_keys) {
    if (args.bias != nullptr) bias = args.bias_of(query.head, query.position(sequence));
  }

  __device__ bool sees(int key) const {
    return present && key >= visible.first && key < visible.last && key < part.last &&
           place_of_key(args, sequence, key) >= 0;
  }

  // Of a key that is seen, from its product with the query.
  __device__ float of(int key, float dot) const {
    float score = dot * args.scale;
    if (args.soft_cap > 0.0f) score = args.soft_cap * tanhf(score / args.soft_cap);
    return bias == nullptr ? score : score + bias[key];
  }
};

// Scores of some keys become weights, and the row's sums fit them. Shape::reduce_row combines what
// the lanes of a row have.
template <class Shape>
__device__ inline void soften(float (&scores)[Shape::kKeysOfLane], Gathered<Shape>& row) {
  float top = row.top;
#pragma unroll
  for (int i = 0; i < Shape::kKeysOfLane; ++i) top = fmaxf(top, scores[i]);
  top = Shape::reduce_row(top, Max{});
  // Nothing seen yet: any finite number serves, and exp(-inf - 0) is 0.
  const float base = top == -INFINITY ? 0.0f : top;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < Shape::kKeysOfLane; ++i) {
    scores[i] = expf(scores[i] - base);
    total += scores[i];
  }
  const float kept = expf(row.top - base);
  row.total = row.total * kept + Shape::reduce_row(total, Sum{});
  row.top = top;
#pragma unroll
  for (int i = 0; i < Shape::kColumns; ++i) row.sum[i] *= kept;
}

}  // namespace rtp_llm::cuda
